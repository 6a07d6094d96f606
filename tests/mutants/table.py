"""The mutants: real mistakes, one a row, that the tests must notice.

A mutant names no file. `old` is a text that occurs exactly once in the sources of all packages, so that a row survives when
code moves; it is an expression out of the innermost function rather than a name that a rename would take. Where a refactoring
rewrites the expression, `test_table.py` says so, and the row is given the new text of the same mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal[
    "sign",
    "off by one",
    "error feedback",
    "divisor",
    "durability",
    "swapped pair",
    "comparison",
    "scale",
    "seed",
    "default",
]


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Args:
        name: Unique; what is broken, in a few words.
        kind: What sort of mistake it is.
        old: Text of the sources, which occurs exactly once in all of them.
        new: What stands there instead.
        tests: Glob patterns, from the root of the checkout, of at most three test files or folders that should notice; a hint
            of where to look first, not a claim.
        compiled: Whether codecs are compiled, which takes minutes; for mistakes in what only compiled code does.
    """

    name: str
    kind: Kind
    old: str
    new: str
    tests: tuple[str, ...]
    compiled: bool = False


REFERENCE_IMPLS: Final = (
    Mutant(
        "lion-update-with-the-beta-of-the-momentum",
        "swapped pair",
        'gradient[part], 1 - h["betas"][0], out=u[part])',
        'gradient[part], 1 - h["betas"][1], out=u[part])',
        ("tests/**/test_lion_cub.py", "tests/**/test_distributed_lion.py"),
    ),
    Mutant(
        "lion-climbs",
        "sign",
        'x.add_(direction, alpha=-h["lr"])',
        'x.add_(direction, alpha=h["lr"])',
        ("tests/**/test_lion_cub.py", "tests/**/test_distributed_lion.py"),
    ),
    Mutant(
        "vote-ties-the-other-way",
        "sign",
        "1 if tie else -1)",
        "-1 if tie else 1)",
        ("tests/**/test_majority.py", "tests/**/test_lion_cub.py"),
    ),
    Mutant(
        "vote-is-void-only-when-two-ranks-are-broken",
        "comparison",
        "(votes[d % piece] > 0) * n",
        "(votes[d % piece] > 1) * n",
        ("tests/**/test_majority.py", "tests/**/test_awkward_inputs.py"),
    ),
    Mutant(
        "dithering-rounds-away-from-the-draw",
        "comparison",
        "torch.where(drawn < z - low, low + 1, low)",
        "torch.where(drawn > z - low, low + 1, low)",
        ("tests/**/test_dithering.py", "tests/**/test_global_qsgd.py"),
    ),
    Mutant(
        "dithering-sums-overflow-by-one-rank",
        "off by one",
        "return largest // world_size",
        "return largest // max(world_size - 1, 1)",
        ("tests/**/test_dithering.py", "tests/**/test_global_qsgd.py"),
    ),
    Mutant(
        "exponential-decodes-to-half",
        "scale",
        "magnitude = ((128 + head_room - c) << 23)",
        "magnitude = ((127 + head_room - c) << 23)",
        ("tests/**/test_exponential.py",),
    ),
    Mutant(
        "global-qsgd-head-room-for-twice-the-ranks",
        "off by one",
        "return (size - 1).bit_length()",
        "return size.bit_length()",
        ("tests/**/test_global_qsgd.py",),
    ),
    Mutant(
        "random-numbers-of-step-0-in-every-step",
        "seed",
        "step=self.clock.step,\n            stage=stage,",
        "step=0,\n            stage=stage,",
        ("tests/**/reference_impls/test_randomness.py", "tests/**/test_qsgd.py"),
    ),
    Mutant(
        "random-numbers-begin-anew-in-every-bucket",
        "seed",
        "start=self.start if view is None else 0",
        "start=0",
        ("tests/**/reference_impls/test_randomness.py", "tests/**/test_qsgd.py"),
    ),
    Mutant(
        "compressed-all-reduce-forgets-the-worker-error",
        "error feedback",
        "_keep_lost(rows, up, worker_error, blocks)",
        "worker_error.zero_()",
        ("tests/**/test_compressed_all_reduce.py",),
    ),
    Mutant(
        "compressed-all-reduce-forgets-the-server-error",
        "error feedback",
        "mean[0, :real].add_(server_error)",
        "mean[0, :real].add_(server_error, alpha=0)",
        ("tests/**/test_compressed_all_reduce.py",),
    ),
    Mutant(
        "apmsqueeze-freezes-the-variance-during-learning-rate-warm-up",
        "default",
        "return max(self.warmup_steps, self.lr_warmup_steps)",
        "return self.warmup_steps",
        ("tests/**/test_apmsqueeze.py", "tests/**/test_one_bit_adam.py"),
    ),
    Mutant(
        "compiled-signs-lie-one-bit-higher",
        "off by one",
        "flags(x[..., plane, :]).to(torch.int32) << plane",
        "flags(x[..., plane, :]).to(torch.int32) << (plane + 1)",
        ("tests/**/codecs/test_compiled.py",),
        compiled=True,
    ),
    Mutant(
        "qsr-rounds-a-period-up",
        "off by one",
        "_cut(math.floor(h), step, self.total)",
        "_cut(math.ceil(h), step, self.total)",
        ("tests/**/test_schedules.py", "tests/**/test_round_rules.py"),
    ),
    Mutant(
        "qsr-periods-do-not-grow-with-the-square",
        "scale",
        "(self.alpha / lr) ** self.power",
        "(self.alpha / lr)",
        ("tests/**/test_schedules.py", "tests/**/test_local_updates.py"),
    ),
    Mutant(
        "last-round-ends-a-step-late",
        "off by one",
        "min(h, total - step))",
        "min(h, total - step + 1))",
        ("tests/**/test_schedules.py",),
    ),
    Mutant(
        "local-models-move-away-from-their-mean",
        "swapped pair",
        'torch.sub(shard.state["anchor"], shard.params, out=',
        'torch.sub(shard.params, shard.state["anchor"], out=',
        ("tests/**/test_model_averaging.py", "tests/**/test_slowmo.py"),
    ),
    Mutant(
        "diloco-nesterov-without-its-momentum",
        "scale",
        "progress.add_(momentum, alpha=self.momentum)",
        "progress.add_(momentum)",
        ("tests/**/test_model_averaging.py", "tests/**/test_streaming_diloco.py"),
    ),
    Mutant(
        "powersgd-forgets-what-it-did-not-send",
        "error feedback",
        "source.sub_(answer)",
        "source.zero_()",
        ("tests/**/test_powersgd.py",),
    ),
    Mutant(
        "dgc-clips-to-a-share-of-n",
        "divisor",
        "self.local_clip / math.sqrt(shard.world.size)",
        "self.local_clip / shard.world.size",
        ("tests/**/test_dgc.py",),
    ),
    Mutant(
        "sketched-sgd-keeps-what-it-sent",
        "error feedback",
        "            v[top] = 0\n",
        "            pass\n",
        ("tests/**/test_sketched_sgd.py",),
    ),
    Mutant(
        "all-to-all-counts-the-piece-that-stays",
        "divisor",
        "return (n - 1) * payload / n",
        "return payload",
        ("tests/**/test_engine.py", "tests/**/test_traits.py", "tests/**/test_majority.py"),
    ),
    Mutant(
        "ledger-notes-what-was-sent-as-received",
        "swapped pair",
        "            collective.received_bytes(size),\n",
        "            collective.wire_bytes(size),\n",
        ("tests/**/test_engine.py", "tests/**/test_slowmo.py", "tests/golden/test_golden.py"),
    ),
    Mutant(
        "hierarchical-mean-is-the-sum-of-a-node",
        "divisor",
        "mine.div_(node.size), first, size)",
        "mine, first, size)",
        ("tests/**/test_hierarchical.py", "tests/**/test_nodes.py"),
    ),
    Mutant(
        "gradients-below-the-norm-are-clipped-up",
        "comparison",
        "(self.clip_norm / (norm + 1e-6), max=1.0)",
        "(self.clip_norm / (norm + 1e-6))",
        ("tests/**/test_optimizer.py", "tests/**/test_like_ddp.py"),
    ),
    Mutant(
        "guard-does-not-see-edited-gradients",
        "comparison",
        "return expected is not None and not torch.equal(fingerprint(flat), expected)",
        "return False",
        (
            "tests/**/reference_impls/test_optimizer.py",
            "tests/**/test_mismatch.py",
            "tests/**/test_like_ddp.py",
        ),
    ),
    Mutant(
        "state-folds-to-the-sum-over-old-ranks",
        "divisor",
        "torch.stack(list(old)).mean(0)",
        "torch.stack(list(old)).sum(0)",
        ("tests/**/test_elastic.py", "tests/**/test_elastic_methods.py"),
    ),
)

SUITE: Final = (
    Mutant(
        "deviation-of-the-population",
        "divisor",
        ".std(ddof=1)",
        ".std(ddof=0)",
        ("tests/**/test_statistics.py",),
    ),
    Mutant(
        "holm-lets-p-values-fall",
        "comparison",
        "np.maximum.accumulate(stepped)",
        "stepped",
        ("tests/**/test_statistics.py", "tests/**/test_more_statistics.py"),
    ),
    Mutant(
        "equal-if-either-end-is-within-the-margin",
        "comparison",
        "if -margin < difference.low and difference.high < margin:",
        "if -margin < difference.low or difference.high < margin:",
        ("tests/**/analysis/test_summary.py",),
    ),
    Mutant(
        "sensitive-though-a-control-loses-half-the-margin",
        "scale",
        "margin > weakest_loss / 2",
        "margin > weakest_loss * 2",
        ("tests/**/analysis/test_summary.py",),
    ),
    Mutant(
        "equal-though-seeds-are-missing",
        "comparison",
        'return word if done == planned else "undecided"',
        "return word",
        ("tests/**/analysis/test_summary.py",),
    ),
    Mutant(
        "claims-above-and-below-exchanged",
        "swapped pair",
        'return "reproduced" if side == "above" else "contradicted"',
        'return "contradicted" if side == "above" else "reproduced"',
        ("tests/**/claims/test_verdict.py",),
    ),
    Mutant(
        "claims-weakest-control-by-its-better-end",
        "swapped pair",
        "return float(-high if _higher(part, cell) else low)",
        "return float(-low if _higher(part, cell) else high)",
        ("tests/**/claims/test_measured.py",),
    ),
    Mutant(
        "cost-model-takes-bits-for-bytes",
        "scale",
        "wire = 8 * sent * form.times(n, mutual)",
        "wire = sent * form.times(n, mutual)",
        ("tests/**/costs/test_network.py", "tests/**/costs/test_fit.py"),
    ),
    Mutant(
        "cost-model-counts-the-forward-pass-twice",
        "scale",
        "backward = (1 - before) * local.compute_s",
        "backward = local.compute_s",
        ("tests/**/costs/test_timeline.py",),
    ),
    Mutant(
        "run-ids-depend-on-the-order-of-keys",
        "default",
        'sort_keys=True, separators=(",", ":"), ensure_ascii=False',
        'sort_keys=False, separators=(",", ":"), ensure_ascii=False',
        ("tests/**/runs/test_spec.py",),
    ),
    Mutant(
        "plan-takes-one-sided-p-values",
        "scale",
        "max(1, comparisons_) * 2.0 / float(2**seeds)",
        "max(1, comparisons_) * 1.0 / float(2**seeds)",
        ("tests/**/runs/test_plan.py",),
    ),
    Mutant(
        "learning-rates-are-tuned-on-seeds-that-are-scored",
        "seed",
        "tuple(range(TUNING_SEED, TUNING_SEED + self.n_seeds))",
        "tuple(range(self.n_seeds))",
        ("tests/**/runs/test_tuning.py", "tests/**/runs/test_sweep.py"),
    ),
    Mutant(
        "results-are-not-flushed-to-disk",
        "durability",
        "if flushed:",
        "if not flushed:",
        ("tests/**/runs/test_store.py",),
    ),
    Mutant(
        "results-are-written-in-place",
        "durability",
        "        temporary.replace(path)\n    except OSError as error:",
        "        path.write_bytes(temporary.read_bytes())\n    except OSError as error:",
        ("tests/**/runs/test_store.py", "tests/**/runs/test_kill.py"),
    ),
    Mutant(
        "lease-of-a-living-process-is-taken",
        "comparison",
        "return not Process(pid, started_ticks).alive()",
        "return Process(pid, started_ticks).alive()",
        ("tests/**/runs/test_lease.py",),
    ),
    Mutant(
        "losses-of-runs-trained-together-are-mixed",
        "swapped pair",
        "losses.view(len(specs), n).mean(1)",
        "losses.view(n, len(specs)).mean(0)",
        ("tests/**/training/test_train.py",),
    ),
    Mutant(
        "own-work-counts-as-foreign-load",
        "sign",
        "(now.busy - before.busy) * tick_s - (now.ours_s - before.ours_s)",
        "(now.busy - before.busy) * tick_s + (now.ours_s - before.ours_s)",
        ("tests/**/timing/test_load.py",),
    ),
    Mutant(
        "a-step-takes-as-long-as-its-fastest-rank",
        "comparison",
        "max(sum(column) for column in units) / len(units[0])",
        "min(sum(column) for column in units) / len(units[0])",
        ("tests/**/timing/test_ranks.py", "tests/**/timing/test_rounds.py"),
    ),
    Mutant(
        "rounds-are-interpolated-from-the-wrong-end",
        "swapped pair",
        "(h - low) / (high - low)",
        "(high - h) / (high - low)",
        ("tests/**/analysis/test_compose.py",),
    ),
    Mutant(
        "stragglers-are-as-fast-as-the-link",
        "comparison",
        "min(self.rate_bps, self.stragglers.get(rank, math.inf))",
        "self.rate_bps",
        ("tests/**/links/test_link.py", "tests/**/links/test_topology.py"),
    ),
)

SLURM: Final = (
    Mutant(
        "jobs-of-several-tasks-allocate-one",
        "scale",
        "array.tasks * job.elapsed_s",
        "job.elapsed_s",
        ("tests/slurm/test_efficiency.py",),
    ),
    Mutant(
        "requeued-once-more-than-allowed",
        "off by one",
        "seat.restarts < work.max_requeues",
        "seat.restarts <= work.max_requeues",
        ("tests/slurm/test_member.py",),
    ),
    Mutant(
        "array-reaches-beyond-its-members",
        "off by one",
        "min(most, end - start)",
        "most",
        ("tests/slurm/test_submit.py",),
    ),
    Mutant(
        "a-run-of-another-job-is-called-failed",
        "comparison",
        "if not elsewhere and store.result(spec.run_id) is None:",
        "if store.result(spec.run_id) is None:",
        ("tests/slurm/test_member.py", "tests/slurm/test_jobs.py", "tests/slurm/test_truth.py"),
    ),
    Mutant(
        "preempted-and-lost-with-a-node-exchanged",
        "swapped pair",
        '("preempted", "preempted") if saved else ("node_lost", "lost with its node")',
        '("preempted", "preempted") if not saved else ("node_lost", "lost with its node")',
        ("tests/slurm/test_member.py", "tests/slurm/test_jobs.py"),
    ),
)

REPORT: Final = (
    Mutant(
        "kilobits-called-megabits",
        "scale",
        '(1e6, "Mbit/s"), (1e3, "kbit/s")',
        '(1e3, "Mbit/s"), (1e6, "kbit/s")',
        ("tests/report/test_scaling_page.py", "tests/report/test_speed_page.py"),
    ),
    Mutant(
        "negative-controls-stand-on-the-front",
        "comparison",
        'if point.family != "control" and point.censored != NEVER',
        "if point.censored != NEVER",
        ("tests/report/test_speed_figures.py",),
    ),
    Mutant(
        "slowest-method-is-ranked-first",
        "sign",
        '(-one.speedup, one.row["arm"])',
        '(one.speedup, one.row["arm"])',
        ("tests/report/test_leaderboard.py",),
    ),
    Mutant(
        "headline-praises-the-method-that-sends-most",
        "comparison",
        'max(equal, key=lambda row: (_number(row, "bytes_ratio")',
        'min(equal, key=lambda row: (_number(row, "bytes_ratio")',
        ("tests/report/test_headline.py",),
    ),
)

BANDWISE: Final = (
    Mutant(
        "schedule-prints-a-share-for-a-percentage",
        "scale",
        "100.0 * len(steps) / args.steps",
        "len(steps) / args.steps",
        ("tests/bandwise/test_cli.py",),
    ),
    Mutant(
        "advice-prints-slowdowns-for-speedups",
        "swapped pair",
        "speedup = reference / method.step_s",
        "speedup = method.step_s / reference",
        ("tests/bandwise/test_costs_verb.py", "tests/**/costs/test_advice.py"),
    ),
    Mutant(
        "minutes-within-an-hour-are-all-minutes",
        "divisor",
        "whole % 3600 // 60",
        "whole // 60",
        ("tests/bandwise/test_cli.py",),
    ),
)

MUTANTS: Final = (*REFERENCE_IMPLS, *SUITE, *SLURM, *REPORT, *BANDWISE)
