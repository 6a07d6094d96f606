"""Codecs: seconds to encode and decode, bytes an element, and what is lost."""

from __future__ import annotations

from .cases import CODECS, build, module

__all__ = ["TimeDecode", "TimeEncode", "TrackCodec"]

# Below and above the size from which on codecs are compiled: the first runs eagerly.
NUMELS = (4096, 1048576)


class _Timed:
    """Seconds for one vector, warm and on one thread; compilation happens in `setup`."""

    version = "1"
    timeout = 120
    rounds = 1
    processes = 1
    repeat = (3, 10, 1.0)
    warmup_time = 0.1
    sample_time = 0.02
    param_names = ("codec", "numel")

    def prepare(self, codec: str, numel: int) -> None:
        """Build the case and run it twice. No number is better than one that names the wrong path: where the codec
        did not run compiled (no C++ compiler, say) or did not run eagerly, as its size asks for, there is none."""
        compilation = module("reference_impls.compilation")
        compilation.reset_paths()
        self.case = build(codec, numel)
        for _ in range(2):
            self.case.encode()
            self.case.decode()
        expected = "compiled" if numel >= compilation.THRESHOLD else "eager"
        ran = compilation.paths()
        if any(set(calls) != {expected} for calls in ran.values()):
            raise NotImplementedError(
                f"{codec} with {numel} elements did not run on the {expected} path: {ran}"
            )


class TimeEncode(_Timed):
    params = (CODECS, NUMELS)

    def setup(self, codec: str, numel: int) -> None:
        self.prepare(codec, numel)

    def time_encode(self, codec: str, numel: int) -> None:
        self.case.encode()


class TimeDecode(_Timed):
    params = (CODECS, NUMELS)

    def setup(self, codec: str, numel: int) -> None:
        self.prepare(codec, numel)

    def time_decode(self, codec: str, numel: int) -> None:
        self.case.decode()


class TrackCodec:
    """Exact and deterministic: these move only when the code does. Lower is better."""

    params = (CODECS,)
    param_names = ("codec",)
    version = "1"
    timeout = 120

    def setup(self, codec: str) -> None:
        self.case = build(codec, 16384)

    def track_bytes_per_element(self, codec: str) -> float:
        self.case.encode()
        return self.case.sent_bytes() / self.case.x.numel()

    def track_residual(self, codec: str) -> float:
        """||x - restored|| / ||x||, the same x for all."""
        x = self.case.x.double()
        return float((x - self.case.restore().double()).norm() / x.norm())

    track_bytes_per_element.unit = "bytes/element"  # a bare "bytes" is rounded to whole ones by asv
    track_residual.unit = "1"
