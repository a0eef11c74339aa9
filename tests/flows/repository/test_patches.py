"""What flows/repository/patches.py replaces in DVC is what it expects: another version of DVC fails here first."""

import json
import subprocess
import sys

REPLACED = {
    "dvc_data.hashfile.db.local:LocalHashFileDB.check": ["self", "oid", "check_hash", "_info"],
    "dvc_data.hashfile.db:HashFileDB.check": ["self", "oid", "check_hash", "_info"],
    "dvc_data.hashfile.db:HashFileDB.add": ["self", "path", "fs", "oid", "hardlink", "callback", "check_exists", "on_error", "kwargs"],
    "dvc_data.hashfile.tree:Tree.load": ["odb", "hash_info", "hash_name"],
    "dvc_data.hashfile.transfer:_do_transfer": ["src", "dest", "obj_ids", "missing_ids", "src_index", "dest_index", "cache_odb", "kwargs"],
    "dvc.data_cloud:DataCloud.get_remote": ["self", "name", "command"],
    "dvc.stage.cache:StageCache.restore": ["self", "stage", "run_cache", "pull", "dry"],
    "dvc.stage.cache:StageCache.pull": ["self", "remote", "odb"],
    "dvc.repo.stage:StageLoad.collect": ["self", "target", "with_deps", "recursive", "graph", "glob"],
    # read, not replaced
    "dvc.stage.cache:_can_hash": ["stage"],
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
    done = subprocess.run([sys.executable, "-c", ASK, *REPLACED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == REPLACED, "look at flows/repository/patches.py"
