"""What flows/storage/patches.py replaces in DVC is what it expects: another version of DVC fails here first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.repository.leftovers import OF_DVC

REPLACED = {
    "dvc_data.hashfile.db.local:LocalHashFileDB.check": ["self", "oid", "check_hash", "_info"],
    "dvc_data.hashfile.db.local:LocalHashFileDB.protect": ["self", "path"],
    "dvc.utils.serialize._common:_dump_data": ["path", "data", "dumper", "fs", "dumper_args"],
    "dvc_data.hashfile.db:HashFileDB.check": ["self", "oid", "check_hash", "_info"],
    "dvc_data.hashfile.db:HashFileDB.add": ["self", "path", "fs", "oid", "hardlink", "callback", "check_exists", "on_error", "kwargs"],
    "dvc_data.hashfile.tree:Tree.load": ["odb", "hash_info", "hash_name"],
    "dvc_data.hashfile.transfer:_do_transfer": ["src", "dest", "obj_ids", "missing_ids", "src_index", "dest_index", "cache_odb", "kwargs"],
    "dvc.data_cloud:DataCloud.get_remote": ["self", "name", "command"],
    "dvc.stage.cache:StageCache.restore": ["self", "stage", "run_cache", "pull", "dry"],
    "dvc.stage.cache:StageCache._load": ["self", "stage"],
    "dvc.stage.cache:StageCache.pull": ["self", "remote", "odb"],
    "dvc_data.hashfile.checkout:Link.__call__": ["self", "cache", "from_path", "to_fs", "to_path"],
    "dvc_objects.fs.generic:_test_link": ["link", "from_fs", "from_file", "to_fs", "to_file"],
    "dvc_data.hashfile.checkout:_determine_files_to_relink": ["diff", "path", "fs", "cache"],
    "dvc_objects.fs.system:reflink": ["src", "dst"],
    "dvc_objects.fs.local:copyfile": ["src", "dest", "callback"],
    "dvc_data.index.fetch:collect": ["idxs", "storage", "callback", "cache_index", "cache_key", "push"],
    "dvc.stage.serialize:to_lockfile": ["stage", "kwargs"],
    "dvc.repo.checkout:_check_can_delete": ["entries", "index", "path", "fs"],
    "dvc.repo.stage:StageLoad.collect": ["self", "target", "with_deps", "recursive", "graph", "glob"],
    "dvc.stage.run:cmd_run": ["stage", "dry", "run_env"],
    # read, not replaced
    "dvc.stage.cache:StageCache._load_cache": ["self", "key", "value"],
    "dvc.stage.cache:StageCache._get_cache_dir": ["self", "key"],
    "dvc.stage.cache:_can_hash": ["stage"],
    "dvc.stage.cache:_get_cache_hash": ["cache", "key"],
    "dvc_objects.fs.generic:_try_links": ["links", "from_fs", "from_path", "to_fs", "to_path", "callback", "batch_size"],
    "dvc_objects.fs.generic:test_links": ["links", "from_fs", "from_path", "to_fs", "to_path"],
    "dvc_objects.fs.utils:tmp_fname": ["prefix"],
    "dvc.stage.cache:_get_stage_hash": ["stage"],
    "dvc.stage.decorators:unlocked_repo": ["f"],
}
ASK = """
import inspect, json, sys
from functools import reduce
from importlib import import_module
def taken(place):
    module, _, path = place.partition(":")
    return list(inspect.signature(reduce(getattr, path.split("."), import_module(module))).parameters)
print(json.dumps({place: taken(place) for place in sys.argv[1:]}))
"""


def test_replaced_functions_have_their_known_signatures() -> None:
    """In a process of its own: this one may have replaced them already."""
    result = subprocess.run([sys.executable, "-c", ASK, *REPLACED], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == REPLACED, "look at flows/storage/patches.py"


DURABLY = """
import hashlib, json, os, stat, sys
from pathlib import Path
from flows.storage.patches import check_by_content, durably
check_by_content()
durably()
from dvc.utils.serialize import dump_yaml, modify_yaml
from dvc_data.hashfile.db.local import LocalHashFileDB
from dvc_data.hashfile.state import State
from dvc_objects.fs.local import LocalFileSystem
import dvc.utils.serialize._yaml as yaml

found = {}
Path("dvc.lock").write_text("stages: {}\\n")
Path("dvc.lock").chmod(0o640)
whole = yaml._dump
def full(data, stream):
    stream.write("stages:\\n  hal")
    stream.flush()
    raise OSError(28, "No space left on device")
yaml._dump = full
try:
    with modify_yaml("dvc.lock") as data:
        data["stages"]["a"] = 1
except OSError:
    found["full"] = [Path("dvc.lock").read_text(), sorted(os.listdir())]
yaml._dump = whole
with modify_yaml("dvc.lock") as data:
    data["stages"]["a"] = 1
found["written"] = [Path("dvc.lock").read_text(), stat.S_IMODE(Path("dvc.lock").stat().st_mode)]

flushed = []
fsync = os.fsync
def watched(file):
    flushed.append([os.readlink(f"/proc/self/fd/{file}")[-10:], stat.S_IMODE(os.fstat(file).st_mode)])
    fsync(file)
os.fsync = watched
Path("out").write_text("made in an hour")
oid = hashlib.md5(b"made in an hour").hexdigest()
odb = LocalHashFileDB(LocalFileSystem(), str(Path("cache").absolute()), state=State(os.getcwd(), str(Path("state").absolute())))
odb.add(str(Path("out").absolute()), LocalFileSystem(), oid)
odb.add(str(Path("out").absolute()), LocalFileSystem(), oid)
place = Path("cache", oid[:2], oid[2:])
found["flushed"], found["mode"], found["ends"] = flushed, stat.S_IMODE(place.stat().st_mode), oid[-10:]
place.chmod(0o644)
place.write_text("made in")
place.chmod(0o444)
try:
    odb.check(oid)
except FileNotFoundError:
    found["missing"] = not place.exists()

import dvc.stage.cache as runs
runs._get_stage_hash = lambda stage: "ab" * 32
import flows.storage.patches as patches
patches.durably.__wrapped__()  # again, with that
class Kept(runs.StageCache):
    def __init__(self):
        self.cache_dir = "runs"
folder = Path("runs/ab", "ab" * 32)
found["runs"] = [Kept()._load(None)]
folder.mkdir(parents=True)
found["runs"].append(Kept()._load(None))
name = runs._get_cache_hash({"cmd": "whole"})
(folder / name).write_text("cmd: whole")
(folder / ".LrTaKQChdEFa7HJFF1wOxw.tmp").write_text("cmd: half")
os.utime(folder / name, (0, 0))
found["runs"].append(Kept()._load(None))
(folder / ("cd" * 32)).write_text("cmd: whole\\nouts:\\n- path: one\\n  md5: %s\\n" % oid)  # of two outs
found["runs"].append(Kept()._load(None))
found["torn"] = (folder / ("cd" * 32)).exists()

from dvc_objects.fs import utils
def cut(source, target):
    Path(target).write_text("hal")
    raise OSError(28, "No space left on device")
utils.shutil.copyfile = utils.system.reflink = cut
try:
    LocalFileSystem().fs.put_file("out", "remote/ab/cd")
except OSError:
    found["sent"] = os.listdir("remote/ab")
print(json.dumps(found))
"""


def test_what_dvc_writes_survives_a_full_disk_and_a_power_cut(tmp_path: Path) -> None:
    """Found by benchmarks/faults.py: a truncated dvc.lock, and a run that failed over a lost object."""
    result = subprocess.run([sys.executable, "-c", DURABLY], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["full"] == ["stages: {}\n", ["dvc.lock"]], "the former file, and nothing half-written"
    assert report["written"] == ["stages:\n  a: 1\n", 0o640]
    assert [name for name, _ in report["flushed"]] == [report["ends"]], "once, as it was added"
    assert report["flushed"][0][1] != 0o444, "not yet marked as intact"
    assert report["mode"] == 0o444
    assert report["sent"] == [], "a copy that failed is removed"
    assert report["missing"], "a corrupt object is removed and counts as missing"
    assert report["runs"] == [None, None, {"cmd": "whole"}, {"cmd": "whole"}], "an empty folder, and half of an entry"
    assert not report["torn"], "an entry cut between two lines is removed"


ON_DEMAND = """
import json
from pathlib import Path
import dvc.stage.cache as runs
import flows.storage.patches as patches

runs._get_stage_hash = lambda stage: "ab" * 32
asked = []
class Kept(runs.StageCache):
    repo, cache_dir = None, "runs"
    def __init__(self):
        pass
def fetch(repo, folder):
    asked.append(str(folder))
    if len(asked) == 1:
        return False
    (folder / runs._get_cache_hash({"cmd": "theirs"})).write_text("cmd: theirs")
    return True
patches.durably()
patches.fetch_runs_on_demand(fetch)
own = Path("runs/ab", "ab" * 32, runs._get_cache_hash({"cmd": "ours"}))
own.parent.mkdir(parents=True)
own.write_text("cmd: ours")
found = [Kept()._load(None)]
own.unlink()
found += [Kept()._load(None) for _ in range(3)]
print(json.dumps([found, asked, Kept().pull(None)]))
"""


def test_a_stage_asks_for_its_own_runs_where_none_is_here(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", ON_DEMAND], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    runs, requests, pulled = json.loads(result.stdout)
    assert runs == [{"cmd": "ours"}, None, {"cmd": "theirs"}, {"cmd": "theirs"}], "ours; the remote has none; it has one; that one is here"
    assert requests == [f"runs/ab/{'ab' * 32}"] * 2
    assert pulled == [], "not all that was ever recorded"


REFLINK = """
import errno, json, os
from pathlib import Path
from dvc_objects.fs import system
from dvc_objects.fs.local import LocalFileSystem
from flows.storage.patches import durably

durably()
disk, found = LocalFileSystem(), []
Path("source").write_text("whole")
def refuse(*_):
    raise OSError(errno.EOPNOTSUPP, "no reflinks here")
def kill(path):
    found.append(sorted(os.listdir("cache")))
    raise KeyboardInterrupt
Path("cache").mkdir()
system.fcntl.ioctl, unlink, system.os.unlink = refuse, os.unlink, kill
try:
    disk.reflink("source", "cache/object")
except KeyboardInterrupt:
    found.append(sorted(os.listdir("cache")))
system.os.unlink = unlink
for clone in (refuse, lambda target, _, source: os.sendfile(target, source, 0, 99)):
    system.fcntl.ioctl = clone
    try:
        disk.reflink("source", "cache/other")
    except OSError as error:
        found.append(error.errno == errno.EOPNOTSUPP)
print(json.dumps([found, Path("cache/other").read_text(), len(os.listdir("cache"))]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="DVC clones by another call elsewhere")
def test_a_kill_while_a_disk_refuses_a_reflink_leaves_no_empty_object(tmp_path: Path) -> None:
    """Found by benchmarks/faults.py: an empty object under its final name."""
    result = subprocess.run([sys.executable, "-c", REFLINK], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (at_kill, after, refused), text, count = json.loads(result.stdout)
    assert at_kill == after
    assert all(OF_DVC.fullmatch(name) for name in after), "which the next run removes"
    assert len(after) == 1
    assert (refused, text) == (True, "whole")
    assert count == 2, "what was killed, and the object"


NO_LINK = """
import errno, os, sys
from pathlib import Path
from dvc.cli import main
from dvc_objects.fs import generic
from dvc_objects.fs.local import LocalFileSystem
from flows.storage.patches import report_disk_errors

main(["init", "--quiet", "--no-scm"])
Path("dvc.yaml").write_text("stages: {a: {cmd: echo one > out, outs: [out]}}")
report_disk_errors()
code, after = getattr(errno, sys.argv[1]), int(sys.argv[2])
put, calls = LocalFileSystem.put_file, []
def fail(self, source, target, **named):
    calls.append(target)
    if len(calls) > after:
        raise OSError(code, os.strerror(code), str(target))
    return put(self, source, target, **named)
def no_reflink(*_):
    raise OSError(errno.ENOTSUP, "no reflink")
LocalFileSystem.put_file, LocalFileSystem.reflink = fail, no_reflink
status = main(["repro", "a"])
print(len(calls))
sys.exit(status)
"""


@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "ENOTSUP"])
@pytest.mark.parametrize("after", [1, 2], ids=["the test file", "the out"])
def test_a_disk_that_fails_at_a_link_is_told_as_that(tmp_path: Path, code: str, after: int) -> None:
    """Found by benchmarks/faults.py: EIO while DVC tried which links there are."""
    result = subprocess.run([sys.executable, "-c", NO_LINK, code, str(after)], cwd=tmp_path, capture_output=True, text=True, check=False)
    message = {"EIO": "Input/output error", "ENOSPC": "No space left on device", "ENOTSUP": "No possible cache link types"}[code]
    assert result.returncode == 255
    assert result.stdout.splitlines()[-1] == str(after + 1), "the one that failed was the last"
    assert message in next(line for line in result.stderr.splitlines() if line.startswith("ERROR: ")), result.stderr


LINKED = """
import errno, json, os, sys
from pathlib import Path
from dvc.cli import main
from dvc_objects.fs.local import LocalFileSystem
from flows.storage.patches import link_new_outs

def no_reflink(*_):
    raise OSError(errno.ENOTSUP, "no reflink")
LocalFileSystem.reflink = no_reflink
main(["init", "--quiet", "--no-scm"])
main(["config", "--quiet", "cache.type", sys.argv[1]])
make = "mkdir folder && echo one > folder/a && echo one > folder/b && echo two > file"
Path("dvc.yaml").write_text("stages: {a: {cmd: %s, outs: [folder, file]}}" % make)
link_new_outs()
assert main(["repro", "--quiet", "a"]) == 0
cached = {path.stat().st_ino for path in Path(".dvc/cache/files/md5").rglob("*") if path.is_file()}
found = {name: "symlink" if Path(name).is_symlink() else Path(name).stat().st_ino in cached for name in ("folder/a", "folder/b", "file")}
print(json.dumps([found, [Path(name).read_text() for name in found], main(["status", "--quiet"])]))
"""


@pytest.mark.parametrize(
    ("types", "expected"),
    [("reflink,hardlink,copy", True), ("hardlink,copy", True), ("reflink,symlink,copy", "symlink"), ("reflink,copy", False)],
)
def test_outs_are_linked_by_the_first_type_that_the_disk_has(tmp_path: Path, types: str, expected: object) -> None:
    """DVC alone links single files so, and leaves the files of folders copies: every artifact was twice on a disk without reflinks."""
    result = subprocess.run([sys.executable, "-c", LINKED, types], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    links, texts, status = json.loads(result.stdout.splitlines()[-1])
    assert links == dict.fromkeys(("folder/a", "folder/b", "file"), expected)
    assert (texts, status) == (["one\n", "one\n", "two\n"], 0)
