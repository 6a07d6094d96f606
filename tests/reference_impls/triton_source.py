"""What the compiler would write for a GPU, on a machine without one: the Triton source of a function of tensors.

The function is traced on the CPU, the graph is moved to a device that does not exist, and the compiler's back end is
told that it does. Nothing is run, and neither a GPU nor the package triton is needed.
"""

from __future__ import annotations

import contextlib
import re
import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.device_interface import CudaInterface
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import config, decomposition
from torch._inductor.compile_fx import compile_fx
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from reference_impls.core import compile_cache as programs

GPU = torch.device("cuda:0")
HOPPER = SimpleNamespace(
    name="none", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32, total_memory=1 << 36,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, L2_cache_size=1 << 25, gcnArchName="",
)  # fmt: skip


@contextlib.contextmanager
def _a_gpu():
    with contextlib.ExitStack() as stack:
        for place, answer in {
            "torch._inductor.scheduler.has_triton": True,
            "torch.utils._triton.triton_hash_with_backend": "none",
            "torch.cuda.get_device_properties": HOPPER,
            "torch.cuda.get_device_capability": (9, 0),
            "torch.cuda.current_device": 0,
        }.items():
            stack.enter_context(mock.patch(place, lambda *_, answer=answer: answer))
        for name, answer in {"get_device_properties": HOPPER, "get_compute_capability": 90}.items():
            stack.enter_context(
                mock.patch.object(CudaInterface, name, staticmethod(lambda *_, answer=answer: answer))
            )
        yield


def _alike(args, device) -> list[torch.Tensor]:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in tensors]


def _traced(function, args, options) -> torch.fx.GraphModule:
    """The function as a graph of torch's own operations, without writes in place but at the end."""
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]

    def of_tensors(*tensors):
        full = list(args)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        result = function(*full)
        return () if result is None else result

    table = decomposition.select_decomp_table()
    with config.patch(options):
        functional = make_fx(
            torch.func.functionalize(of_tensors), decomposition_table=table, tracing_mode="fake"
        )
        return functional(*_alike(args, "cpu"))


def divides_by_a_number(function, args) -> bool:
    """Whether a tensor is divided by a Python number: a GPU takes the product with 1 / number."""
    return any(
        node.target is torch.ops.aten.div.Tensor and isinstance(node.args[1], int | float)
        for node in _traced(function, args, {}).graph.nodes
    )


def triton_source(function, args, options) -> str:
    """Python source: kernels and the code that launches them.

    Args:
        function: of tensors and scalars; may write into its arguments.
        args: its arguments, tensors on the CPU.
        options: what `torch.compile` would be given.
    """
    return _lowered(_traced(function, args, options), _alike(args, "cpu"), FakeTensorMode(), options)


def _lowered(graph: torch.fx.GraphModule, inputs, mode: FakeTensorMode, options) -> str:
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": GPU}
    graph.graph.eliminate_dead_code()
    graph.recompile()
    with _a_gpu(), config.patch(options):
        with mode:
            moved = [_alike([x], GPU)[0] if isinstance(x, torch.Tensor) else x for x in inputs]
        with enable_python_dispatcher():
            FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*moved)
        lowering = GraphLowering(graph, example_inputs=moved, shape_env=mode.shape_env)
        with V.set_fake_mode(mode), V.set_graph_handler(lowering), V.set_debug_handler(mock.MagicMock()):
            lowering.run(*moved)
            code, _ = lowering.codegen()
    return code.value


def open_source(function, args, options) -> str:
    """As `triton_source`, of the function as it is traced in a training: sizes and the integers given are left open."""
    found = []

    def keep(graph, inputs, **_):
        found.append((graph, inputs))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    with programs.settings(args), config.patch(options):
        torch.compile(
            function, dynamic=True, fullgraph=True, backend=partial(compile_fx, inner_compile=keep)
        )(*args)
    ((graph, inputs),) = found
    mode = next(x.fake_mode for x in inputs if isinstance(x, torch.Tensor))
    return _lowered(graph, inputs, mode, options)


def compile_kernels(source: str, folder: Path) -> int:
    """Compile the kernels of a source by Triton for a GPU of compute capability 9.0, which need not be there.

    Returns:
        How many there are.

    Raises:
        triton.CompilationError: Triton refuses one.
    """
    from triton import compile as compiled
    from triton import runtime
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = GPUTarget("cuda", 90, 32)
    found = re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)'''", source, re.DOTALL)
    for name, text in found:
        path = folder / f"{name}.py"  # Triton reads the source of its functions
        path.write_text(text.replace("triton_helpers.set_driver_to_gpu()", ""))
        with _a_gpu(), mock.patch.object(runtime.driver, "_active", mock.MagicMock()):
            runtime.driver.active.get_current_target.return_value = target
            kernel = runpy.run_path(str(path))[name]
            (settings, *_) = kernel.configs
            signature = dict.fromkeys(kernel.fn.arg_names, "constexpr") | kernel.triton_meta["signature"]
            constants = kernel.triton_meta["constants"] | settings.kwargs
            compiled(ASTSource(kernel.fn, signature, constants, {}), target=target)
    return len(found)
