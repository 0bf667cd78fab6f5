"""What is said of a fitted step: with a line for the host's memory where anything is there, and without."""

import json
from dataclasses import replace

import pytest

from remat_plan.compiled.collectives import AGAIN, BACKWARD, Collective
from remat_plan.results.steps import LargestSize, LargestSizes, StepBytes, StepReport


def report(*host_bytes):
    """A report of a made-up step with so much on the host, as written and planned."""
    plain, planned = (StepBytes(peak, 10**8, 10**7, 0, peak - 11 * 10**7, 10**8, host) for peak, host in zip(
        (9 * 10**8, 5 * 10**8), host_bytes, strict=True
    ))  # fmt: skip
    return StepReport("train", "gpu:h100", "60%", 54 * 10**7, plain, planned, 10**8, 10**8, 0, 0, 0.1, 0.1, 1, 2)


def test_a_step_that_moves_values_says_how_many_bytes_are_on_the_host():
    shown = report(0, 2 * 10**9)
    (line,) = (line for line in str(shown).splitlines() if line.startswith("host memory"))
    assert " ".join(line.split()) == "host memory 0 B 2 GB in addition to the peak"
    assert "900 MB -> 500 MB, 2 GB on the host, budget 540 MB" in repr(shown)
    assert "host memory" in shown._repr_html_()
    assert json.loads(shown.to_json())["planned"]["host_bytes"] == 2 * 10**9


@pytest.mark.parametrize("text", [str, repr, StepReport._repr_html_])
def test_a_step_that_moves_nothing_says_nothing_of_the_host(text):
    assert "host" not in text(report(0, 0))


def test_what_devices_send_each_other_is_told_by_pass():
    sent = Collective(AGAIN, "all-gather", 4, 10**9), Collective(BACKWARD, "reduce-scatter", 2, 2 * 10**9)
    made = report(0, 0)
    shown = replace(made, planned=replace(made.planned, collectives=sent))
    lines = [" ".join(line.split()) for line in str(shown).splitlines() if line.startswith("sent")]
    end = "between devices; no part of the peak"
    assert lines == [
        f"sent in the forward pass - 0 B {end}",
        f"sent again, recomputing - 1 GB {end}",
        f"sent in the backward pass - 2 GB {end}",
    ]
    assert json.loads(shown.to_json())["planned"]["collectives"][0]["size_bytes"] == 10**9
    assert "sent" not in str(made)


def test_sizes_with_gains_and_losses_have_their_sign():
    rows = LargestSize(48, 10, 0.0, 0.0), LargestSize(192, 10, -0.236, 0.1), LargestSize(320, 10, 0.19, None)
    sizes = LargestSizes("train", "gpu:h100", "1GB", 10**9, "batch", 8, rows, 9)
    assert repr(sizes).endswith("48 plain; 192 at -23.6%, 320 at +19.0%>")
