"""Compressors: seconds to encode, decode and add up, bytes an element, and what is lost. `copy` is the yardstick."""

from __future__ import annotations

from .cases import COMPRESSORS, build, module

__all__ = ["TimeAccumulate", "TimeDecode", "TimeEncode", "TrackCompressor"]

# Below and above the size from which on compressors are compiled: the first runs eagerly.
NUMELS = (4096, 1048576)


class _Timed:
    """Seconds for one vector, warm and on one thread; compilation happens in `setup`."""

    version = "2"
    timeout = 120
    rounds = 1
    processes = 1
    repeat = (3, 10, 0.4)
    warmup_time = 0.05
    sample_time = 0.02
    param_names = ("codec", "numel")
    verbs: tuple[str, ...] = ()

    def setup(self, compressor: str, numel: int) -> None:
        """Build the case and run it twice. No number is better than one that names the wrong path: where the compressor
        did not run compiled (no C++ compiler, say) or did not run eagerly, as its size asks for, there is none."""
        compute = module("reference_impls.core.compute")
        self.case = build(compressor, numel)
        compute.reset_paths()
        # Compressors that say little work on little, too; but whether anything is compiled here does not depend on them.
        compute.Key.of(seed=0, step=0, stage="micro", rank=0).bits(numel)
        for _ in range(2):
            for verb in self.verbs:
                getattr(self.case, verb)()
        expected = "compiled" if numel >= compute.THRESHOLD else "eager"
        ran = compute.paths()
        small = {name for name in ran if self.case.small_parts and not name.startswith("compute.")}
        if any(set(calls) != {expected} for name, calls in ran.items() if name not in small):
            raise NotImplementedError(
                f"{compressor} with {numel} elements did not run on the {expected} path: {ran}"
            )


class TimeEncode(_Timed):
    params = (COMPRESSORS, NUMELS)
    verbs = ("encode",)

    def time_encode(self, compressor: str, numel: int) -> None:
        self.case.encode()


class TimeDecode(_Timed):
    params = (COMPRESSORS, NUMELS)
    verbs = ("encode", "decode")

    def time_decode(self, compressor: str, numel: int) -> None:
        self.case.decode()


class TimeAccumulate(_Timed):
    """Adding what is decoded to what is there, for the compressors whose messages are averaged one by one."""

    params = (COMPRESSORS, NUMELS[1:])
    verbs = ("encode", "accumulate")

    def setup(self, compressor: str, numel: int) -> None:
        if "accumulate" not in build(compressor, 32).verbs:
            raise NotImplementedError(f"{compressor} does not add")
        super().setup(compressor, numel)

    def time_accumulate(self, compressor: str, numel: int) -> None:
        self.case.accumulate()


class TrackCompressor:
    """Exact and deterministic: these move only when the code does. Lower is better."""

    params = (COMPRESSORS,)
    param_names = ("codec",)
    version = "1"
    timeout = 120

    def setup(self, compressor: str) -> None:
        self.case = build(compressor, 16384)

    def track_bytes_per_element(self, compressor: str) -> float:
        self.case.encode()
        return self.case.sent_bytes() / self.case.x.numel()

    def track_residual(self, compressor: str) -> float:
        """||x - restored|| / ||x||, the same x for all."""
        x = self.case.x.double()
        return float((x - self.case.restore().double()).norm() / x.norm())

    track_bytes_per_element.unit = "bytes/element"  # a bare "bytes" is rounded to whole ones by asv
    track_residual.unit = "1"
