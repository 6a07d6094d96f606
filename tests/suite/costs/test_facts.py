"""What is written beside a table of the cost model: who else used the machine, and nothing of its paths."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from suite.costs.columns import CALIBRATION, EXTERNAL
from suite.costs.facts import Watch, facts_path, family_seconds, read_facts, write_with_facts

FORMATS = Path(__file__).resolve().parents[3] / "docs" / "cost-formats.md"


def test_facts_lie_beside_their_table_and_are_documented(tmp_path: Path) -> None:
    facts = Watch().facts(3)
    assert write_with_facts(tmp_path, CALIBRATION, [], facts).name == "collectives.csv"
    assert read_facts(tmp_path, CALIBRATION) == json.loads(json.dumps(facts))
    assert read_facts(tmp_path, EXTERNAL) is None
    assert str(Path.home()) not in facts_path(tmp_path, CALIBRATION).read_text()
    assert facts["threads"] == 3
    said = FORMATS.read_text().partition("\n## ")[0]
    assert set(facts) <= set(re.findall(r"`(\w+)`", said))


def test_children_that_have_ended_count_as_ours() -> None:
    before = family_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(i * i for i in range(3_000_000))"], check=True)
    assert family_seconds(os.getpid()) - before > 0.05
