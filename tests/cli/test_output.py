"""Files: whole or not at all."""

import os

import pytest

from remat_plan.cli.errors import InputError
from remat_plan.cli.output import Outputs, write_whole


class Broken:
    """A report whose picture cannot be drawn."""

    def to_json(self):
        return "{}"

    def plot(self):
        raise RuntimeError("no picture")

    def _repr_html_(self):
        return "<div></div>"


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    target = tmp_path / "a.json"
    target.write_text("old")
    write_whole(str(target), b"new")
    assert target.read_text() == "new"
    assert names(tmp_path) == ["a.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    target.write_text("old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        write_whole(str(target), b"new")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.json"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_is_no_ordinary_file_is_written_to():
    write_whole(os.devnull, b"new")
    assert not os.path.isfile(os.devnull)


def test_nothing_is_written_when_one_of_the_files_cannot_be_made(tmp_path):
    files = Outputs(str(tmp_path / "a.json"), str(tmp_path / "a.html"), str(tmp_path / "a.png"))
    files.check()
    with pytest.raises(RuntimeError, match="no picture"):
        files.write(Broken(), "title")
    assert names(tmp_path) == []
