"""The doctor: made-up systems get the right diagnosis and one command; the system at hand is tried for real."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from bandwise.cli import main
from suite.links import doctor
from suite.links.doctor import Finding, Machine, Trial, checks, obstacle, run_trial
from tests.support import require_system

WORKS: Trial = dict.fromkeys(doctor.TRIAL_STEPS)
NO_NETEM: Trial = {**WORKS, doctor.NETEM: "Error: Specified qdisc kind is unknown."}
REFUSED: Trial = {doctor.NAMESPACES: "unshare(0x50000000): Operation not permitted"}
PROGRAMS = ("ip", "tc", "nsenter", "g++", "apt-get")

ALL_RIGHTS = "000001ffffffffff"
DOCKER_DEFAULT = "00000000a80425fb"  # what Docker leaves to root: neither CAP_SYS_ADMIN nor CAP_NET_ADMIN
QUIET = {
    "proc/loadavg": "0.05 0.10 0.20 1/131 5021\n",
    "proc/stat": "cpu  1000 0 200 8790 5 0 4 1 0 0\ncpu0 1 1\n",
    "proc/meminfo": "MemTotal: 8000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "proc/1/cgroup": "0::/init.scope\n",
    "proc/sys/user/max_user_namespaces": "96365\n",
    "proc/sys/user/max_net_namespaces": "96365\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "0\n",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,8\n",
    "sys/devices/system/cpu/smt/control": "on\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm\n",
    "proc/self/stat": "77 (python) R 1 1\n",
    "proc/77/stat": "77 (python) R 1 1\n",
    "proc/12/stat": "12 (sshd) S 1 1\n",
    "proc/self/cgroup": "0::/user.slice/session-1.scope\n",
    "sys/fs/cgroup/user.slice/session-1.scope/cpu.max": "max 100000\n",
}


def machine(
    root: Path,
    files: Mapping[str, str] | None = None,
    *,
    uid: int = 1000,
    rights: str = "0",
    programs: tuple[str, ...] = PROGRAMS,
    tried: Trial = WORKS,
    cores: int = 8,
    header: bool = True,
) -> Machine:
    """A quiet machine, apart from what is said."""
    found = {
        **QUIET,
        "proc/self/status": f"Name:\tx\nCapEff:\t{rights}\nCpus_allowed_list:\t0-7\n",
        **(files or {}),
    }
    for name, text in found.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Machine(
        root=root,
        uid=uid,
        cores=cores,
        find=lambda name: f"/usr/bin/{name}" if name in programs else None,
        trial=lambda: tried,
        python_header=header,
    )


def named(findings: list[Finding], name: str) -> Finding:
    (found,) = (finding for finding in findings if finding.name == name)
    return found


APPARMOR = {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}


@pytest.mark.parametrize(
    ("files", "uid", "rights", "cause", "fix"),
    [
        pytest.param(
            APPARMOR, 1000, "0", "AppArmor",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0", id="Ubuntu 24.04",
        ),
        pytest.param(
            {"proc/sys/kernel/unprivileged_userns_clone": "0\n"}, 1000, "0", "kept for root",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1", id="Debian 10",
        ),
        pytest.param(
            {"proc/sys/user/max_user_namespaces": "0\n"}, 1000, "0", "no user namespaces",
            "sudo sysctl -w user.max_user_namespaces=1000", id="RHEL 7",
        ),
        pytest.param(
            {"proc/sys/user/max_net_namespaces": "0\n"}, 0, ALL_RIGHTS, "no net namespaces",
            "sudo sysctl -w user.max_net_namespaces=1000", id="no net namespaces, root or not",
        ),
        pytest.param(
            {".dockerenv": ""}, 0, DOCKER_DEFAULT, "root without CAP_SYS_ADMIN and CAP_NET_ADMIN",
            "docker run --privileged ...", id="Docker as root",
        ),
        pytest.param(
            {".dockerenv": ""}, 0, ALL_RIGHTS, "seccomp or AppArmor",
            "docker run --privileged ...", id="Docker with rights and a profile",
        ),
        pytest.param(
            {**APPARMOR, "run/.containerenv": ""}, 1000, "0", "the container's security profile",
            "docker run --privileged ...", id="Podman on Ubuntu: a sysctl inside would not help",
        ),
        pytest.param(
            {"proc/1/cgroup": "11:pids:/kubepods/burstable/pod3\n"}, 1000, "0", "the container's",
            "docker run --privileged ...", id="Kubernetes",
        ),
        pytest.param(
            {}, 1000, "0", "an ordinary user", 'sudo env "PATH=$PATH" bandwise session quick', id="for no known reason",
        ),
    ],
)  # fmt: skip
def test_why_there_are_no_namespaces(
    files: Mapping[str, str], uid: int, rights: str, cause: str, fix: str, tmp_path: Path
) -> None:
    asked = machine(tmp_path, files, uid=uid, rights=rights, tried=REFUSED)
    found = obstacle(asked)
    assert found is not None
    assert found.name == "namespaces"
    assert cause in found.detail
    assert "Operation not permitted" in found.detail
    assert found.fix == fix
    # what could not be tried is not said to be fine, and points to the same command
    (bridge, delay) = (named(checks(machine=asked), name) for name in ("bridge", "delay"))
    assert (bridge.ok, bridge.fix, delay.ok, delay.fix) == (False, fix, False, fix)


@pytest.mark.parametrize("step", [doctor.NAMESPACES, doctor.ENTER])
def test_rights_that_a_namespace_does_not_give(step: str, tmp_path: Path) -> None:
    """Where AppArmor lets a namespace be made and then takes the rights in it away."""
    tried = {doctor.NAMESPACES: None, step: "RTNETLINK answers: Operation not permitted"}
    found = named(checks(machine=machine(tmp_path, APPARMOR, tried=tried)), "namespaces")
    assert found.fix.endswith("apparmor_restrict_unprivileged_userns=0")


@pytest.mark.parametrize(
    ("missing", "manager", "fix"),
    [
        ("tc", "apt-get", "sudo apt-get install iproute2"),
        ("tc", "dnf", "sudo dnf install iproute-tc"),
        ("ip", "dnf", "sudo dnf install iproute"),
        ("nsenter", "apk", "sudo apk add util-linux-misc"),
        ("nsenter", "pacman", "sudo pacman -S util-linux"),
        ("ip", "no manager that is known", "sudo apt-get install iproute2"),
    ],
)
def test_a_missing_program(missing: str, manager: str, fix: str, tmp_path: Path) -> None:
    programs = tuple({*PROGRAMS, manager} - {missing, "apt-get" if manager != "apt-get" else ""})
    asked = machine(tmp_path, programs=programs)
    found = obstacle(asked)
    assert found is not None
    assert (found.name, found.fix) == (missing, fix)
    assert "not installed" in found.detail


@pytest.mark.parametrize(
    ("step", "fix"),
    [
        (doctor.BRIDGE, "sudo modprobe bridge"),
        (doctor.VETH, "sudo modprobe veth"),
        (doctor.TBF, "sudo modprobe sch_tbf"),
    ],
)
def test_a_kernel_that_lacks_something(step: str, fix: str, tmp_path: Path) -> None:
    found = obstacle(machine(tmp_path, tried={**WORKS, step: "Unknown device type."}))
    assert found is not None
    assert (found.name, found.detail, found.fix) == (step, "Unknown device type.", fix)


def test_a_good_machine_has_nothing_to_be_fixed(tmp_path: Path) -> None:
    findings = checks(workers=8, machine=machine(tmp_path))
    assert all(finding.ok and not finding.fix for finding in findings), findings
    assert obstacle(machine(tmp_path)) is None
    assert "without root" in named(findings, "namespaces").detail
    root = checks(machine=machine(tmp_path, uid=0, rights=ALL_RIGHTS))
    assert "as root" in named(root, "namespaces").detail


@pytest.mark.parametrize(
    ("tried", "ok", "detail"),
    [
        (WORKS, True, "the kernel's netem"),
        (NO_NETEM, False, "the kernel has no netem: Error: Specified qdisc kind is unknown."),
    ],
)
def test_delays(tried: Trial, ok: bool, detail: str, tmp_path: Path) -> None:
    found = named(checks(machine=machine(tmp_path, tried=tried)), "delay")
    assert (found.ok, found.needed) == (ok, False)
    assert detail in found.detail
    assert bool(found.fix) is not ok


WARNINGS = [
    ("load", {"proc/loadavg": "3.10 1 1 2/99 1\n"}, {}, "3.10 on 8 cores"),
    ("swap", {"proc/meminfo": "SwapTotal: 900 kB\nSwapFree: 400 kB\n"}, {}, "500 KiB"),
    ("steal", {"proc/stat": "cpu  1000 0 0 8500 0 0 0 500 0 0\n"}, {}, "5.00%"),
    ("governor", {"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n"}, {}, "powersave"),
    ("processes", {"proc/9/stat": "9 (a (b) c) R 1 1\n"}, {}, "computing at this moment: a (b) c (9)"),
    ("turbo", {"sys/devices/system/cpu/intel_pstate/no_turbo": "0\n"}, {}, "on: clocks rise"),
    (
        "throttling", {"sys/devices/system/cpu/cpu3/thermal_throttle/core_throttle_count": "17\n"}, {},
        "slowed down for heat 17 times",
    ),
    ("SMT", {"sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0-1\n"}, {}, "one core: 0 and 1"),
    (
        "CPU quota",
        {
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/session-1.scope/cpu.max": "600000 100000\n",
        }, {},
        "1.5 cores' worth of time for 8 cores",
    ),
    (
        "CPU quota",
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n",
        }, {}, "2 cores' worth",
    ),
    ("huge pages", {"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n"}, {}, "always"),
    (
        "NUMA balancing",
        {
            "sys/devices/system/node/node0/meminfo": "", "sys/devices/system/node/node1/meminfo": "",
            "proc/sys/kernel/numa_balancing": "1\n",
        }, {}, "2 memory nodes",
    ),
    (
        "clock source",
        {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"}, {}, "hpet: reading it",
    ),
    ("cores", {}, {"cores": 2}, "2 for 4 workers: computing takes 2 times"),
    ("compiler", {}, {"programs": ("ip", "tc", "nsenter")}, "no C++ compiler"),
    ("compiler", {}, {"header": False}, "no header files"),
    ("delay", {}, {"tried": NO_NETEM}, "no netem"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "files", "options", "detail"), WARNINGS)
def test_what_costs_speed_or_belief_is_a_warning(
    name: str, files: Mapping[str, str], options: dict[str, object], detail: str, tmp_path: Path
) -> None:
    asked = machine(tmp_path, files, **options)  # type: ignore[arg-type]
    findings = checks(machine=asked)
    found = named(findings, name)
    assert not found.ok
    assert not found.needed
    assert detail in found.detail
    assert found.fix
    assert obstacle(asked) is None
    assert [finding.name for finding in findings if not finding.ok] == [name]


FIXES = [
    ("turbo", {"sys/devices/system/cpu/intel_pstate/no_turbo": "0"}, "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate"),
    ("SMT", {"sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0-1"}, "echo off | sudo tee"),
    (
        "SMT",
        {
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,1",
            "sys/devices/system/cpu/cpu2/topology/thread_siblings_list": "2,3",
            "sys/devices/system/cpu/smt/control": "notsupported",
        },
        "taskset -c 0,2 ",
    ),
    (
        "clock source",
        {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"},
        "echo tsc | sudo tee /sys/devices/system/clocksource",
    ),
    (
        "clock source",
        {
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "acpi_pm",
            "sys/devices/system/clocksource/clocksource0/available_clocksource": "acpi_pm",
        },
        "boot with tsc=reliable",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "files", "fix"), FIXES)
def test_the_fix_suits_the_machine(name: str, files: Mapping[str, str], fix: str, tmp_path: Path) -> None:
    assert named(checks(machine=machine(tmp_path, files)), name).fix.startswith(fix)


def test_turbo_of_other_drivers(tmp_path: Path) -> None:
    asked = machine(tmp_path, {"sys/devices/system/cpu/cpufreq/boost": "1"})
    (tmp_path / "sys/devices/system/cpu/intel_pstate/no_turbo").unlink()
    assert (
        named(checks(machine=asked), "turbo").fix == "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
    )
    (tmp_path / "sys/devices/system/cpu/cpufreq/boost").write_text("0")
    assert named(checks(machine=asked), "turbo").detail == "off"


def test_a_quota_for_all_cores_is_none_to_worry_about(tmp_path: Path) -> None:
    asked = machine(tmp_path, {"sys/fs/cgroup/user.slice/cpu.max": "800000 100000"})
    assert named(checks(machine=asked), "CPU quota").detail == "8 cores' worth of time for 8 cores"


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    asked = Machine(tmp_path, 1000, 4, lambda name: name, lambda: WORKS, True)
    assert all(finding.ok for finding in checks(machine=asked))


def test_the_system_at_hand_is_left_as_it_was() -> None:
    require_system("ip")
    before = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    tried = run_trial()
    after = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert before == after
    assert doctor.NAMESPACES in tried
    if tried[doctor.NAMESPACES] is None:
        assert tuple(tried) == doctor.TRIAL_STEPS


def test_a_trial_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("suite.links.doctor.TRIAL_MODULE", "suite.links.nothing_of_that_name")
    tried = run_trial()
    assert "nothing_of_that_name" in str(tried[doctor.NAMESPACES])
    assert obstacle(machine(tmp_path, tried=tried)) is not None


@pytest.mark.parametrize(("tried", "code"), [(WORKS, 0), (REFUSED, 3)])
def test_the_verb(
    tried: Trial,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = machine(tmp_path, APPARMOR, tried=tried, cores=2)
    monkeypatch.setattr(doctor.Machine, "here", lambda: asked)
    assert main(["session", "--doctor", "--workers", "6", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["cluster"] is (code == 0)
    assert {"name", "ok", "detail", "fix", "needed"} == set(found["findings"][0])
    assert main(["session", "--doctor", "--workers", "6"]) == code
    text = capsys.readouterr().out
    assert "--  cores" in text
    assert "2 for 6 workers" in text
    assert ("NO  namespaces" in text) is (code == 3)
    assert ("do: sudo sysctl -w kernel.apparmor" in text) is (code == 3)
