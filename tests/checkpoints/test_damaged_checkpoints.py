"""Checkpoints that others wrote, or a crash left: right values, or an error that says what is wrong with which file."""

import copy
import os
import shutil
from pathlib import Path

import changed_indexes
import numpy as np
import pytest
from changed_indexes import ANYTHING, HAVE, VALUE, WANT, raw_index, replaced, save_in_pieces, sealed, tree, values

import meshwright as mw
from meshwright.checkpoint_io import CheckpointManager, opened, restore, save
from meshwright.checkpoint_io.index import NAME
from meshwright.errors import ArgumentError, CheckpointDamagedError, CheckpointError, CheckpointWarning


@pytest.fixture(scope="module", params=HAVE)
def kept(request, tmp_path_factory):
    """A folder with two checkpoints of a kind, ``a`` and ``b``; do not change it."""
    folder = tmp_path_factory.mktemp(request.param)
    for by, name in enumerate("ab"):
        save_in_pieces(folder / name, by, request.param)
    return folder


@pytest.fixture
def folder(kept, tmp_path):
    """A copy of it."""
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    return tmp_path


def outcome(folder, **how):
    """``"right"``, or the text of an error of ours."""
    results = set()
    for like in (None, tree(1)):
        try:
            results.add("right" if values(restore(folder, like, **how)) == WANT else "wrong")
        except CheckpointError as error:
            assert str(folder) in str(error)
            results.add(str(error))
    assert "wrong" not in results
    return " / ".join(results)


# --- the index ----------------------------------------------------------------------------------------------
#: a field of each kind, by its place
FIELDS = {
    ".".join(map(str, place)): place
    for place in [
        *((name,) for name in ("entries", "tree", "format", "step", "metrics", "version")),
        *(("entries", 4, name) for name in ("path", "shape", "dtype", "key", "pieces")),
        *(("entries", 4, "pieces", 1, name) for name in ("start", "stop", "file", "offset", "count")),
        ("entries", 0), ("entries", 0, "key"), ("entries", 4, "shape", 0), ("entries", 4, "pieces", 0),
        ("entries", 4, "pieces", 1, "start", 1), ("metrics", "loss"), ("tree", "dict"), ("tree", "dict", "v"),
        ("tree", "dict", "list", "list", 0), ("tree", "dict", "v", "leaf"),
    ]
}  # fmt: skip
#: what says nothing about values, and may be anything of its kind; what a null or a list says too
HARMLESS = {"step": ("null", "-1", "0", "huge", "2**63"), "metrics": ("dict", "leaf"), "tree": ("null",),
            "metrics.loss": ("-1", "0", "0.0", "1.5", "huge", "2**63", "NaN"), "entries.4.key": ("null",),
            "entries.4.pieces.1.offset": ("0",), "entries.0.key": ("null",), "tree.dict.v.leaf": ("0",),
            "tree.dict.v": ("leaf",)}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_fields_that_are_something_else(folder, field):
    """Each is refused, or means what it did."""
    raw = raw_index(folder / "a")
    for name, value in {**ANYTHING, "nothing": ...}.items():
        (folder / "a" / NAME).write_text(sealed(replaced(raw, FIELDS[field], value)))
        result = outcome(folder / "a")
        if name not in (*HARMLESS.get(field, ()), "nothing") and (field, name) != ("version", "0"):
            assert "damaged" in result or "format" in result, f"{name}: {result}"


def edited(**changes):
    """A function that changes fields of the piece 1 of the entry 4, the array that is split."""

    def edit(raw):
        raw["entries"][4]["pieces"][1].update(changes)

    return edit


def code(text):
    """A function that runs ``text`` on the index ``i``, its entries ``e`` and the pieces ``p`` of the split array."""

    def edit(raw):
        exec(text, {"i": raw, "e": raw["entries"], "p": raw["entries"][4]["pieces"], "copy": copy})

    return edit


INDEXES = {
    "a leaf twice": code("e.append(copy.deepcopy(e[4])); i['tree'] = None"),
    "a leaf of another name": code("e[1]['path'] = \"['other']\""),
    "a leaf's names exchanged": code("e[0]['path'], e[1]['path'] = e[1]['path'], e[0]['path']"),
    "a leaf forgotten": code("e.pop(0); i['tree'] = None"),
    "an array made empty": code("e[4].update(shape=[0, 8], pieces=[])"),
    "an array that no leaf has": code("e.append({**copy.deepcopy(e[4]), 'path': \"['x']\"})"),
    "a leaf without array": code("e.pop()"),
    "no arrays": code("e.clear()"),
    "a tree with a leaf twice": code("i['tree']['dict']['x'] = i['tree']['dict']['v']"),
    "a tree of other order": code("i['tree'] = {'list': [{'leaf': 1}, {'leaf': 0}]}"),
    "a tree with a leaf from the end": code("i['tree']['dict']['v'] = {'leaf': -1}"),
    "a tree of two kinds": code("i['tree']['list'] = []"),
    "a tree of none": code("i['tree'] = {'none': 1}"),
    "an unknown field": code("i['more'] = 1"),
    "an unknown field of a piece": code("p[0]['more'] = 1"),
    "pieces over each other": code("p[1] = {**p[0]}"),
    "pieces askew": code("p[1].update(start=[0, 2], stop=[2, 6])"),
    "a piece too few": code("p.pop()"),
    "a piece too many": code("p.append({**p[0]})"),
    "a piece backwards": code("p[1].update(start=p[1]['stop'], stop=p[1]['start'])"),
    "a piece beyond": code("p[-1].update(start=[8, 8], stop=[10, 12])"),
    "pieces of two, exchanged": code(
        "[p[0].update(offset=p[1]['offset'], file='x'), p[1].update(offset=p[0]['offset'], file='x')]"
    ),
    "arrays exchanged": code("e[1]['pieces'], e[3]['pieces'] = e[3]['pieces'], e[1]['pieces']"),
    "another type of as many bytes": code("e[4]['dtype'] = 'int32'"),
    "a name for a type": code("e[4]['dtype'] = 'float'"),
    "a type with more bytes": code("e[4]['dtype'] = 'float64'"),
    "text as a type": code("e[4]['dtype'] = 'U1'"),
    "keys of no generator": code("e[0]['key'] = 'key<none>'"),
    "keys of another generator": code("e[0]['key'] = 'key<rbg>'"),
    "numbers as keys": code("e[4]['key'] = 'key<fry>'"),
    "another shape of as many elements": code("e[3].update(shape=[16])"),
    "another shape of no elements": code("e[2].update(shape=[0, 5])"),
    "rank 65": code("e[3].update(shape=[1] * 64 + [64]); e[3]['pieces'] = []"),
    "overflow": code("e[3].update(shape=[2**31, 2**32, 0], pieces=[])"),
    "huge": code("e[3].update(shape=[2**60], pieces=[{**p[0], 'start': [0], 'stop': [2**60], 'count': 2**62}])"),
    "of a later format": code("i['version'] = 2"),
    "another format": code("i['format'] = {'tensorstore': 'safetensors'}.get(i['format'], 'tensorstore')"),
    **{
        f"in {name!r}": edited(file=name)
        for name in (".", "..", "", "x", "/etc/passwd", "../b/x", "a\0b", "\ud800", "x" * 300, "folder", "pipe", "loop")
    },
}


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_that_say_what_is_not_so(folder, name):
    raw = raw_index(folder / "a")
    INDEXES[name](raw)
    (folder / "a" / "folder").mkdir()
    (folder / "a" / "loop").symlink_to("loop")
    if raw["format"] == "safetensors":  # the other is looked through
        os.mkfifo(folder / "a" / "pipe")
    (folder / "a" / NAME).write_text(sealed(raw))
    result = outcome(folder / "a")
    assert "damaged" in result or "this version reads" in result or "another tree" in result, result


@pytest.mark.parametrize("name", ["..", "../b", "/etc", ""])
def test_folders_of_arrays_outside_of_a_checkpoint_are_not_looked_into(tmp_path, name, refuses):
    """Checkpoints of before, without a database, had a folder for each array."""
    pytest.importorskip("tensorstore")
    save(tmp_path / "a", {"v": np.ones(2)}, format="tensorstore")
    (tmp_path / "a" / "manifest.ocdbt").unlink()
    raw = raw_index(tmp_path / "a")
    raw["entries"][0]["pieces"][0]["file"] = name
    (tmp_path / "a" / NAME).write_text(sealed(raw))
    with refuses(CheckpointDamagedError, "which is no part of the checkpoint"):
        restore(tmp_path / "a")


TEXTS = {
    "nothing": b"", "a list": b"[]", "a number": b"1", "null": b"null", "cut": b'{"entries": [', "deep": b"[" * 10**5,
    "deep in a field": b'{"version": 1, "entries": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "zeros": bytes(1000),
    "not UTF-8": b'{"version": 1, "\xff": 1}', "digits": b'{"version": ' + b"9" * 5000 + b"}",
    "no more": b'{"version": 1}', "of a fraction": b'{"version": 1.0}', "true": b'{"version": true, "entries": []}',
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_indexes_that_are_none(tmp_path, name, refuses):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / NAME).write_bytes(TEXTS[name])
    with refuses(CheckpointDamagedError, str(tmp_path / "a" / NAME), "earlier checkpoint"):
        restore(tmp_path / "a")


# --- files --------------------------------------------------------------------------------------------------
def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _folder(path):
    path.unlink()
    path.mkdir()


def _loop(path):
    path.unlink()
    path.symlink_to(path.name)


#: what may be in the place of a file
DAMAGES = {
    "missing": Path.unlink, "empty": lambda p: os.truncate(p, 0),
    "cut": lambda p: os.truncate(p, p.stat().st_size // 2), "pipe": _pipe,
    "folder": _folder, "loop": _loop, "a device": lambda p: (p.unlink(), p.symlink_to("/dev/zero")),
    "zeros": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "a far header": lambda p: p.write_bytes(b"\xff" * 8 + p.read_bytes()[8:]),
    "a deep header": lambda p: p.write_bytes((200_000).to_bytes(8, "little") + b"[" * 10**5 + b"]" * 10**5),
    "an odd header": lambda p: p.write_bytes((2).to_bytes(8, "little") + b"[]" + bytes(5000)),
    "odd metadata": lambda p: p.write_bytes((16).to_bytes(8, "little") + b'{"__metadata__":'[:15] + b"}" + bytes(5000)),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_files_that_are_something_else(kept, tmp_path, damage):
    """Each file of a checkpoint in turn; with checksums compared, nothing is wrong."""
    names = [p.relative_to(kept) for p in sorted((kept / "a").rglob("*")) if p.is_file()]
    found = 0
    for number, name in enumerate(names):
        copied = tmp_path / str(number)
        shutil.copytree(kept, copied)
        DAMAGES[damage](copied / name)
        result = outcome(copied / "a", verify=True)
        found += result != "right"
        if name.name == NAME:
            assert "is damaged" in result or "there is no checkpoint" in result
    assert found >= 2  # only joining needs the rest


def test_data_of_another_checkpoint(folder):
    """Under the name of ours, in the place of one of its files, or of the index."""
    for ours, other in zip(sorted((folder / "a").rglob("*")), sorted((folder / "b").rglob("*"))):
        if ours.is_file() and other.is_file():
            before = ours.read_bytes()
            shutil.copy(other, ours)
            outcome(folder / "a")
            ours.write_bytes(before)
    assert outcome(folder / "a") == "right"
    shutil.copy(folder / "b" / NAME, folder / "a" / NAME)
    assert "damaged" in outcome(folder / "a")


@pytest.mark.parametrize("like", [None, tree()], ids=["as saved", "like"])
@pytest.mark.parametrize("change", ["written", "cut", "gone", "replaced", "index"])
def test_checkpoints_that_change_while_they_are_read(folder, change, like, monkeypatch, refuses):
    (data,) = (folder / "a").glob("data-*") if list((folder / "a").glob("data-*")) else ((folder / "a" / "_METADATA"),)
    index, region = folder / "a" / NAME, opened.Opened.region

    def changing(self, entry, where=()):
        value = region(self, entry, where)
        match change:
            case "written":
                data.write_bytes(data.read_bytes())
            case "cut":
                os.truncate(data, 100)
            case "gone":
                shutil.rmtree(folder / "a", ignore_errors=True)
            case "replaced":
                save(folder / "a", tree(1), overwrite=True, format=self.index.format)
            case "index":
                index.write_text(index.read_text())
        return value

    monkeypatch.setattr(opened.Opened, "region", changing)
    with refuses(CheckpointError, str(folder), "changed or replaced", "restore it again"):
        restore(folder / "a", like)


# --- names --------------------------------------------------------------------------------------------------
PATHS = {
    "/": "no checkpoint",
    "x" * 300: "shorter name",
    "loop": "loop",
    "pipe": "no checkpoint",
    "pipe/x": "no checkp",
}


@pytest.mark.parametrize("path", PATHS)
def test_paths_without_a_checkpoint(tmp_path, path, refuses):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with refuses(CheckpointError, PATHS[path]):
        restore(tmp_path / path)
    if path != "/":
        with refuses(CheckpointError):
            save(tmp_path / path, {"a": VALUE})


class Named:
    """A node whose two leaves have one name."""

    def __init__(self, *x):
        self.x = x


mw.tree_util.register_pytree_with_keys(
    Named, lambda n: ([(mw.tree_util.GetAttrKey("x"), x) for x in n.x], None), lambda _, x: Named(*x)
)


def test_leaves_of_one_name_are_refused(tmp_path, refuses):
    with refuses(ArgumentError, "leaves", ".x", "rename"):
        save(tmp_path / "a", Named(VALUE, VALUE + 1))
    save(tmp_path / "a", {"x": VALUE})
    with refuses(CheckpointError, "another tree", "twice"):
        restore(tmp_path / "a", Named(VALUE, VALUE + 1))


def test_deep_trees_come_back_or_are_refused(tmp_path, refuses):
    x = VALUE
    for depth in range(1, 2000):
        x = [x]
        if depth in (50, 200):
            save(tmp_path / str(depth), x)
            np.testing.assert_array_equal(mw.tree.leaves(restore(tmp_path / str(depth)))[0], VALUE)
    with refuses(mw.errors.MeshwrightError, "deep"):
        save(tmp_path / "a", x)
    assert not (tmp_path / "a").exists()


# --- managers -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("verify", [False, True])
def test_managers_pass_over_what_is_damaged(tmp_path, verify):
    with CheckpointManager(tmp_path, keep_best=1) as manager:
        for step in range(4):
            manager.save(step, VALUE + step, {"loss": step})
    next(manager.folder(3).glob("data-*")).unlink()
    (manager.folder(2) / NAME).write_text("{")
    with pytest.warns(CheckpointWarning, match=r"step [23] is passed over"):
        np.testing.assert_array_equal(manager.restore(verify=verify), VALUE + 1)
    with pytest.warns(CheckpointWarning, match="step 2 is passed over"):
        manager.save(4, VALUE, {"loss": 9}).wait()
        manager.wait()  # which looks for the best
        assert manager.best_steps()[0] == 0


def test_managers_leave_alone_what_is_not_theirs(tmp_path):
    """Folders of other programs: by the names of steps, or of what is being written; files; steps by other names."""
    mine = ("step_7/model.pt", "notes.replaced/text", "notes/text", "run.writing-1/text", "step_9")
    (tmp_path / ".replaced").mkdir()
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    save(tmp_path / "step_3", VALUE)
    manager = CheckpointManager(tmp_path)
    assert manager.steps() == []
    manager.save(10, VALUE).wait()
    assert all((tmp_path / name).read_text() == "mine" for name in mine)
    assert (tmp_path / "step_3" / NAME).is_file()


# --- random -------------------------------------------------------------------------------------------------
def test_indexes_changed_at_random():
    """``make fuzz`` changes 20,000 (``tests/long_runs.py``)."""
    for number in range(300):
        assert not (wrong := changed_indexes.found_in(number)), f"{number}: {wrong}"
