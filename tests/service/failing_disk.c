/* A disk that fails when it is told to. Loaded into a service by LD_PRELOAD; FAILING_DISK names a file whose first
   letter says what fails: s syncing, w writing pages, m writing the page that makes a commit count. Anything else works. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { META_BYTES = 2 * 4096 };

static int fails(char what) {
    const char *path = getenv("FAILING_DISK");
    char told = 0;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    if (read(file, &told, 1) != 1) told = 0;
    close(file);
    if (told == what) errno = EIO;
    return told == what;
}

static int is_file(int file) {
    struct stat status;
    return fstat(file, &status) == 0 && S_ISREG(status.st_mode);
}

int fdatasync(int file) { return fails('s') ? -1 : (int)syscall(SYS_fdatasync, file); }

ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) {
    if (fails(at < META_BYTES ? 'm' : 'w')) return -1;
    return syscall(SYS_pwrite64, file, bytes, count, at);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) { return pwrite(file, bytes, count, at); }

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (is_file(file) && fails('w')) return -1;
    return syscall(SYS_writev, file, parts, count);
}
