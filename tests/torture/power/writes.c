/* Notes every write to a data.mdb, and every sync of one, in a file beside its directory: DIRECTORY.writes.

   Preloaded (LD_PRELOAD) into a service. A note is {kind, offset, length} in 64-bit numbers, then the bytes of a write.
   LMDB writes by pwrite, and runs of pages by writev where the descriptor stands.
   Kinds: 0 a write that the kernel may keep in memory; 1 a write by a descriptor that is opened for synchronous data;
   2 a sync that has returned. Writes are noted before they are made, syncs after: what the notes call durable is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;

static int notes_of(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 16);
    if (length < 9 || memcmp(path + length - 9, "/data.mdb", 9) != 0) return -1;
    strcpy(path + length - 9, ".writes");
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void note(int fd, uint64_t kind, uint64_t offset, const struct iovec *parts, int count) {
    int notes = notes_of(fd);
    if (notes < 0) return;
    struct iovec all[IOV_MAX];
    uint64_t head[3] = {kind, offset, 0};
    all[0] = (struct iovec){head, sizeof head};
    for (int each = 0; each < count; each++) {
        head[2] += parts[each].iov_len;
        all[each + 1] = parts[each];
    }
    pthread_mutex_lock(&noting);
    ssize_t written = writev(notes, all, count + 1);
    pthread_mutex_unlock(&noting);
    close(notes);
    if (written != (ssize_t)(sizeof head + head[2])) _exit(86);
}

static uint64_t kind_of(int fd) { return (fcntl(fd, F_GETFL) & O_DSYNC) ? 1 : 0; }

#define REAL(name) (__typeof__(&name)) dlsym(RTLD_NEXT, #name)

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    struct iovec part = {(void *)data, length};
    note(fd, kind_of(fd), offset, &part, 1);
    return (REAL(pwrite64))(fd, data, length, offset);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    note(fd, kind_of(fd), offset, parts, count);
    return (REAL(pwritev64))(fd, parts, count, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(fd, parts, count, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    note(fd, kind_of(fd), lseek(fd, 0, SEEK_CUR), parts, count);
    return (REAL(writev))(fd, parts, count);
}

int fdatasync(int fd) {
    usleep(10000); /* a slow disk, so that kills fall between writes and their sync */
    int result = (REAL(fdatasync))(fd);
    if (result == 0) note(fd, 2, 0, NULL, 0);
    return result;
}

int fsync(int fd) {
    int result = (REAL(fsync))(fd);
    if (result == 0) note(fd, 2, 0, NULL, 0);
    return result;
}
