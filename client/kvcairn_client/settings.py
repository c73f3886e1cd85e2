"""Settings of process and model that change the last bits of results, and that can change between two calls."""

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from kvcairn_client.adapters import adapter_switches
from kvcairn_client.weights import all_tensors

_log = logging.getLogger(__name__)

# What the kernel libraries read from the environment, and round by.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip


class Settings:
    """What a model's settings were when its layout was learned, and whether they still are. Thread-safe.

    recorded: as the layout's identity has them. Whatever is computed under others belongs to no key of that layout.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        # Weights that wait on the meta device are computed with elsewhere.
        self._devices = sorted({tensor.device.type for _, tensor in all_tensors(model)} - {"meta"})
        self.recorded = current_settings(model, self._devices)
        self._is_logged = False

    def have_changed(self) -> bool:
        """Whether they differ here and now, in the calling thread; the first time, the log says which."""
        current = current_settings(self._model, self._devices)
        if current == self.recorded:
            return False
        if not self._is_logged:
            self._is_logged = True
            changes = [
                f"{name}: {old} -> {current[name]}" for name, old in self.recorded.items() if old != current[name]
            ]
            _log.warning("prefilling without a cache: settings that change bits have changed (%s)", "; ".join(changes))
        return True


def current_settings(model: Any, devices: Sequence[str]) -> dict[str, str]:
    """The settings that this thread would run the model with now. devices: types of the devices that it runs on."""
    found = {
        "attention": str(model.config._attn_implementation),
        "experts": str(model.config._experts_implementation),
        "adapter_switches": adapter_switches(model),
        "autocast": ",".join(_autocast(device) for device in devices),
        "matmul": _matmul_precision(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "environment": ",".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ),
    }
    if "cpu" in devices:
        found["cpu"] = _cpu_settings()
    if "cuda" in devices:
        found["cuda"] = _cuda_settings()
    return found


def _autocast(device: str) -> str:
    return f"{device} {torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else 'off'}"


def _matmul_precision() -> str:
    """Of float32 products, by backend. torch before 2.9 has one setting for all; later ones raise where that is read
    after one backend's was set, so that it is not read there.
    """
    if not hasattr(torch.backends, "fp32_precision"):
        return torch.get_float32_matmul_precision()
    backends: dict[str, Any] = {"cuda": torch.backends.cuda, "mkldnn": torch.backends.mkldnn}
    found = {name: backend.matmul.fp32_precision for name, backend in backends.items()}
    # "none" has been set by nobody, and means full precision.
    return ",".join(f"{backend} {'ieee' if value == 'none' else value}" for backend, value in found.items())


def _cpu_settings() -> str:
    """How work is cut between threads, which decides the order of sums; whose kernels run; whether denormals count."""
    denormals = bool(torch.tensor(1e-39, dtype=torch.float32, device="cpu") * 0.5)
    return f"{torch.get_num_threads()} threads,mkldnn {torch.backends.mkldnn.enabled},denormals {denormals}"


def _cuda_settings() -> str:
    matmul = torch.backends.cuda.matmul
    reduced = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    accumulation = getattr(matmul, "allow_fp16_accumulation", False)
    return f"reduced {reduced},fp16 accumulation {accumulation},{torch.backends.cuda.preferred_blas_library()}"
