"""Every kernel against the plain torch source, to the bit: `python -m tests.reference_impls.kernels.checks [cuda]`.

With TRITON_INTERPRET=1 kernels run on the CPU, by Triton's interpreter; with ``cuda`` on the GPU. A NaN is one whatever its bits.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import traceback

import torch
from triton.runtime import interpreter

from reference_impls.compressors import dithering, lookup, packing, signs, sparse, transforms
from reference_impls.compressors.count_sketch import CountSketch
from reference_impls.compressors.levels import GeometricLevels, MinMax, Natural, UniformLevels
from reference_impls.compressors.sums import fixed_sum
from reference_impls.core import compute
from reference_impls.core.compute import Key
from reference_impls.kernels import sums as on_gpu

SIZES = (0, 1, 31, 32, 33, 4097)
ROWS = (((), 0), ((2,), 1))  # leading axes; bytes and elements by which rows are displaced
SPECIAL = (0.0, -0.0, 1e-40, -1e-40, 1e-45, 1e-30, 3.0, -3.0, 1.5e38, -1.5e38)


def numbers(lead, d, odd=0, bad=False):
    """Normal numbers of which some are zeros, subnormal or large, in rows that do not lie behind one another."""
    x = torch.randn(*lead, d + odd, generator=torch.Generator().manual_seed(d))
    for at, value in enumerate(SPECIAL):
        x[..., 3 + at :: 1009] = value
    if bad:
        x[..., odd::1000], x[..., odd + 7 :: 2000] = math.nan, math.inf
    return x[..., odd:]


def displaced(x, odd, device):
    """`x` there, rows as far apart as they were."""
    room = torch.zeros(*x.shape[:-1], x.shape[-1] + odd, dtype=x.dtype).to(device)
    room[..., odd:] = x.to(device)
    return room[..., odd:]


def key(lead=()):
    words = torch.stack([Key.of(seed=1, step=2, stage="k", rank=rank, start=5).words for rank in range(2)])
    return Key(words.expand(*lead, 3) if lead else words[0])


def compare(device, name, work):
    """`work` on the plain path of the CPU and by kernels; `name`: of the function that must have taken one."""
    os.environ["BANDWISE_COMPILE"] = "0"
    expected = work(torch.device("cpu"))
    os.environ["BANDWISE_COMPILE"] = "1"
    compute.reset_paths()
    found = work(device)
    ran = compute.paths().get(name, {})
    assert set(ran) == {"triton"}, (name, ran)
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        one, other = one.reshape(-1), other.cpu().reshape(-1)
        if one.is_floating_point():
            one, other = one.nan_to_num(nan=-7.0), other.nan_to_num(nan=-7.0)
        assert one.view(torch.uint8).equal(other.view(torch.uint8)), (name, place, int((one != other).sum()))


def one_bit(device):
    for d, (lead, odd) in [*itertools.product(SIZES, ROWS), (33, ((2, 3), 0))]:
        if d == 0 and odd:
            continue

        def work(on, d=d, lead=lead, odd=odd):
            x, n = displaced(numbers(lead, d, odd, bad=d > 9), odd, on), 3
            wire = displaced(torch.zeros(*lead, n, signs.wire_bytes(d), dtype=torch.uint8), odd, on)
            signs.pack_signs(x, wire[..., 0, :], zero=True)
            # the interpreter has no subnormal ones
            half = torch.where(x.abs() < 1e-37, 0.0, x).to(torch.bfloat16)
            signs.pack_signs(half, wire[..., 1, :], zero=False)
            signs.pack(x > 0.5, wire[..., 2, :])
            bits = torch.zeros(*lead, d, dtype=torch.bool, device=on)
            signs.unpack(wire[..., 1, :], bits)
            plain, narrow = (
                torch.zeros(*lead, d, device=on),
                torch.zeros(*lead, d, dtype=torch.int8, device=on),
            )
            signs.unpack_signs(wire[..., 0, :], plain)
            signs.unpack_signs(wire[..., 2, :], narrow)
            votes = torch.zeros(*lead, d, dtype=torch.int32, device=on)
            signs.count_votes(wire, votes)
            scales = torch.tensor([0.3, 1e6, math.pi]).to(on).expand(*lead, n)
            total = displaced(numbers(lead, d, odd), odd, on)
            signs.decode_accumulate(wire, scales, total)
            return [wire, bits, plain, narrow, votes, total]

        compare(device, "signs.decode_accumulate", work)


COMPRESSORS = (
    UniformLevels(7, "linf", 512),
    UniformLevels(3, "linf", 0),
    UniformLevels(300, "l2", 100, 3),
    GeometricLevels(7, "linf", 512),
    Natural(),
    MinMax(4, 512),
    MinMax(3, 500),
    MinMax(8, 0, "nearest"),
)


def levels(device):
    cases = [
        *itertools.product(COMPRESSORS, ((1, (), 0, False), (1030, (2,), 1, False), (1024, (2,), 0, True))),
        *itertools.product(COMPRESSORS[:2], ((4613, (), 1, False),)),  # more than a program makes
    ]
    for compressor, (d, lead, odd, bad) in cases:

        def work(on, compressor=compressor, d=d, lead=lead, odd=odd, bad=bad):
            x = displaced(numbers(lead, d, odd, bad), odd, on)
            wire = displaced(torch.zeros(*lead, compressor.wire_bytes(d), dtype=torch.uint8), odd, on)
            compressor.encode(x, key(lead), wire)
            out = displaced(numbers(lead, d, odd), odd, on)
            compressor.decode(wire, out)
            decoded = out.clone()
            compressor.decode(wire, out, add=True)
            return [*([] if bad else [wire]), decoded, out]

        compare(device, "blocks.encode", work)


def integers(device):
    for bits, (d, odd) in itertools.product((1, 3, 8, 27), ((31, 0), (1030, 1))):

        def work(on, bits=bits, d=d, odd=odd):
            source = torch.Generator().manual_seed(bits)
            values = torch.randint(0, 1 << min(bits + 1, 31), (3, d), generator=source, dtype=torch.int32).to(
                on
            )
            wire = displaced(torch.zeros(3, packing.wire_bytes(d, bits), dtype=torch.uint8), odd, on)
            packing.pack(values, bits, wire)
            back = torch.zeros_like(values)
            packing.unpack(wire, bits, back)
            total = torch.zeros(d, dtype=torch.int32, device=on)
            packing.add_up(wire, bits, total)
            return [wire, back, total]

        compare(device, "packing.pack", work)


def shared_scales(device):
    for scale, count in itertools.product((3.1, 1e-9, 1e-30, 2e20, 0.0, math.inf, math.nan), (7, 300)):

        def work(on, scale=scale, count=count):
            x = numbers((2,), 1500, bad=count == 300).to(on)
            given = torch.tensor(scale).to(on)
            codes = torch.zeros(2, 1500, dtype=torch.int8 if count < 128 else torch.int32, device=on)
            dithering.encode(x, given, count, key((2,)), codes)
            powers = torch.zeros(2, 1500, dtype=torch.uint8, device=on)
            dithering.encode_powers(x, given, 2, key((2,)), powers)
            return [codes, powers]

        compare(device, "dithering.encode", work)


def tables(device):
    for table in (lookup.table("published", 4, 30, 1 / 32), lookup.table("uniform", 3, 7, 0.01)):

        def work(on, table=table):
            indices = torch.zeros(5003, dtype=torch.int32, device=on)
            table.encode(numbers((), 5003, bad=True).to(on), key(), indices)
            return [indices]

        compare(device, "lookup.encode", work)


def rotations(device):
    for d, size in ((1, 1), (7, 4), (1000, 64), (2500, 1024), (9000, 4096)):

        def work(on, d=d, size=size):
            chunks = transforms.Chunks(d, size)
            coins = Key.of(seed=1, step=1, stage="coins").bits(chunks.padded).bitwise_and(1)
            flips = (coins * 2 - 1).to(torch.float32).to(on)
            padded = chunks.pad(numbers((), d).to(on))
            turned = chunks.rotate(padded, flips)
            return [turned, chunks.rotate_back(turned, flips), chunks.rotate(padded)]

        compare(device, "transforms.transform", work)


def largest(device):
    d, k = 70_001, 1000
    plain = numbers((), d, bad=True)
    few = torch.where(torch.arange(d) % 90 == 7, plain, 0.0)
    for x in (plain, (plain * 8).round() / 8, few):

        def work(on, x=x):
            return [sparse.largest_magnitudes(x.to(on), k)]

        os.environ["BANDWISE_COMPILE"] = "0"
        counted = sparse._by_counting(sparse.magnitude(x).view(1, -1), k)
        assert counted.equal(work(torch.device("cpu"))[0])
        compare(device, "sparse.largest", work)


def sketches(device):
    for d, rows, columns, start in ((3001, 5, 37, 0), (301, 3, 1000, 12345), (100, 1, 7, 2**30 - 100)):

        def work(on, d=d, rows=rows, columns=columns, start=start):
            sketch = CountSketch(rows, columns, seed=3, start=start)
            table, out = torch.zeros(rows, columns, device=on), torch.zeros(d, device=on)
            sketch.encode(numbers((), d).clamp(-8, 8).mul(64).round().to(on), table)  # sums of integers
            sketch.decode(table, out)
            broken, gone = table.clone(), torch.zeros(d, device=on)
            broken[0, 5] = math.nan
            sketch.decode(broken, gone)
            return [table, out, gone]

        compare(device, "count_sketch.decode", work)


def sums(device):
    on_gpu._WIDTH, on_gpu._MOST = 2, 12  # so that few blocks are many
    for of, shape in itertools.product(
        ("x", "abs", "square", "wide square"), ((16,), (3, 2500), (1024 * 25 + 3,))
    ):

        def work(on, shape=shape, of=of):
            x = numbers(shape[:-1], shape[-1]).clamp(-1e15, 1e15)
            minus = torch.full(shape, -0.0)
            factor = torch.linspace(0.1, 7.3, math.prod(shape[:-1])).view(*shape[:-1], 1)
            return [
                fixed_sum(x.to(on), of),
                fixed_sum(x.to(on), of, factor.to(on)),
                fixed_sum(displaced(x, 1, on)[..., :-1], of),
                fixed_sum(minus.to(on), of),
                fixed_sum(x.double().to(on), of),
            ]

        compare(device, "sums.fixed_sum", work)


def draws(device):
    for lead, d in itertools.product(((), (2,)), (1, 5, 1024, 2500)):

        def work(on, lead=lead, d=d):
            return [key(lead).bits(d, on), key(lead).uniform(d, on)]

        compare(device, "compute.fill", work)


CHECKS = (one_bit, levels, integers, shared_scales, tables, rotations, largest, sketches, sums, draws)


def scalars_are_numbers() -> None:
    """Triton 3.6's interpreter makes numbers of arrays of one element as NumPy before 2.4 did."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def main() -> int:
    scalars_are_numbers()
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
    failed = 0
    for check in CHECKS:
        try:
            check(device)
        except Exception:  # noqa: BLE001
            traceback.print_exc()
            failed += 1
    sys.stdout.write(f"{len(CHECKS) - failed} of {len(CHECKS)} kernels equal the plain source\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
