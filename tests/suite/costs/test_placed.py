"""The papers' settings on the axis of rho."""

from __future__ import annotations

import pytest

from suite.costs.papers import PaperModelError, of_share, of_volume, placed


def test_a_share_of_93_percent_is_a_rho_of_thirteen() -> None:
    assert of_share(0.93) == pytest.approx(13.3, abs=0.05)
    with pytest.raises(PaperModelError, match="below 1"):
        of_share(1.0)


def test_two_runs_give_back_the_rho_that_they_were_made_of() -> None:
    computing, communication, volume = 3.0, 4.5, 0.1
    assert of_volume(computing + communication, computing + volume * communication, volume) == pytest.approx(
        1.5
    )


def test_every_setting_is_named_once_and_has_communication() -> None:
    names = [(one.paper, one.setting) for one in placed()]
    assert len(set(names)) == len(names)
    assert all(one.rho > 0 for one in placed())


def test_settings_of_one_paper_keep_the_order_of_their_links() -> None:
    rho = {one.setting: one.rho for one in placed()}
    assert (
        rho["BERT-Large, 64 V100, Ethernet"]
        > rho["BERT-Large, 64 V100, InfiniBand"]
        > rho["BERT-Large, 8 V100, InfiniBand"]
    )
    assert rho["Wide-ResNet, through host memory"] > rho["Wide-ResNet, NVLink"]
