"""Checks of params.yaml before DVC reads it. DVC itself reports these mistakes as a raw ENOENT or a traceback."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from flows.parameters.alike import suggesting
from flows.parameters.migrations import missing_sections
from flows.parameters.needs import ENCODERS, NEGATIVES, ORDERED, entries, find_cycle, needs
from flows.parameters.sources import source_keys
from tasks.core.errors import Missing, UserError
from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.measures import needs_texts, parse
from tasks.core.metrics.selection import SYSTEMS as MEASURED
from tasks.core.params.sections import read_yaml, validate
from tasks.core.retrieval.ann.factories import scans_fast
from tasks.core.sources.datasets import local_path, parse_dataset
from tasks.core.sources.wikipedia import parse_articles
from tasks.core.stage.code import Reader
from tasks.core.stage.references import freeze_references
from tasks.params import RETRIEVE, Parameters

PARAMS = Path("params.yaml")
WORD = re.compile(r"[^\s,\[\]{}]+")
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
RESERVED = ("base", "none", "bm25", "official", "random")
GIVEN_NEGATIVES = ("none", "random", "official", "bm25")
CONSTANT = ("NumQ", "NumRel", "NumRet")  # measures that count queries and documents
SYSTEMS = (*ENCODERS, "rerankers", *ORDERED)  # sections whose entries name metrics or curves


def check_file(path: Path = PARAMS, *, compared: bool = True) -> Parameters:
    """The parameter file as one record. Raises UserError, one line with file and key, if it is invalid. `compared`: see `check`."""
    sections = read_yaml(path)
    check_quotes(path)
    return check(sections, str(path), compared=compared)


def check_quotes(path: Path) -> None:
    """Check that DVC's reader accepts the file too: within {} and [], it needs quotes around a word with : or ?."""
    text = path.read_text(encoding="utf-8")
    try:
        YAML(typ="safe").load(text)  # as DVC does
    except MarkedYAMLError as error:
        mark = error.problem_mark
        words = WORD.finditer(text.split("\n")[mark.line])
        word = next((found[0] for found in words if found.start() <= mark.column < found.end()), "")
        if ":" not in word and "?" not in word:
            raise UserError(f"{path}:{mark.line + 1}: DVC cannot read this line ({error.problem}); fix it") from None
        raise UserError(f'{path}:{mark.line + 1}: found {word} unquoted within {{}} or []; write "{word}"') from None


def check(sections: dict[str, Any], where: str = str(PARAMS), *, compared: bool = True) -> Parameters:
    """`check_file` on the file's content. Not `compared`: the file is made to measure some systems only, which are not compared."""
    check_moved(sections, where)
    check_age(sections, where)
    check_names(sections, where)
    with suggesting():
        parameters = validate(Parameters, sections, where)
    for section, parse_source in (("dataset", parse_dataset), ("articles", parse_articles)):
        try:
            parse_source(getattr(parameters, section).source)
        except UserError as error:
            raise UserError(f"{where}: {section}.source: {error}") from None
    if "texts" not in sections["chunk"]:
        raise UserError(
            f"{where}: chunk.texts: missing, and dvc.yaml reads it; add texts: articles (or corpus) to chunk, or run retemper upgrade"
        )
    if parameters.fuse and "metric" not in sections["report"]:
        metric = parameters.report.metric
        raise UserError(
            f"{where}: report.metric: missing, and stage fuse reads it; add metric: {metric} to report, or run retemper upgrade"
        )
    check_sources(sections, where)
    check_references(sections, where)
    freeze_references(sections, Reader(Path()))
    check_mined(parameters, where)
    check_official(parameters, where)
    check_extra(parameters, where)
    check_rounds(parameters, where)
    check_metric(parameters, where)
    if compared:
        check_compared(parameters, systems(sections), where)
    deepest, ranks = parameters.evaluate.deepest
    lists = ranks + (ranks > 0 and parameters.retrieve.ignore_identical_ids)  # one may be dropped
    depths = [("retrieve.depth", parameters.retrieve.depth, ranks), ("bm25.run_depth", parameters.bm25.run_depth, lists)]
    depths += [(f"fuse.{name}.depth", entry.depth, ranks) for name, entry in parameters.fuse.items()]
    for key, depth, least in depths:
        if depth < least:
            raise UserError(
                f"{where}: {key}: found {depth}, expected at least {least} for {deepest} in evaluate.measures; "
                f"raise it, or remove that measure"
            )
    return parameters


def systems(sections: Mapping[str, Any]) -> list[str]:
    """The names of all systems that are measured."""
    return ["bm25", *(str(name) for section in MEASURED for name in entries(sections, section))]


def check_compared(parameters: Parameters, known: list[str], where: str) -> None:
    """Check that all compared systems are among the `known` ones; the default's baselines may be absent."""
    model, against, report = parameters.failures.model, parameters.failures.against, parameters.report
    defaults = type(report).model_fields["baselines"].default
    baselines = [("report.baselines", name) for name in report.baselines if name not in defaults]
    for key, name in [("failures.model", model), ("failures.against", against), *baselines]:
        if name is not None and name not in known:
            raise UserError(f"{where}: {key}: found {name!r}, expected one of {', '.join(known)}")
    if model is not None and model == against:
        raise UserError(f"{where}: failures.against: found {against!r}, the model itself; expected another system")


def check_mined(parameters: Parameters, where: str) -> None:
    """Check that indexes in which negatives are mined can also give exact scores of known positives."""
    searched = [name for name, entry in parameters.mine.items() if entry.search == "indexes"]
    if searched and parameters.index.factory != "Flat" and scans_fast(parameters.index.factory):
        raise UserError(
            f"{where}: mine.{searched[0]}.search: found indexes, and index.factory {parameters.index.factory}, whose fast scan gives no "
            "exact scores of known positives; expected search: embeddings, or a factory without fs, such as IVF4096,PQ64"
        )


def check_metric(parameters: Parameters, where: str) -> None:
    """Check that report.metric is measured, higher is better, and fusions can be chosen by it."""
    metric, measures = parameters.report.metric, parameters.evaluate.measures
    if metric not in measures:
        raise UserError(f"{where}: report.metric: found {metric!r}, expected one of evaluate.measures: {', '.join(measures)}")
    if lower_is_better(metric):
        raise UserError(
            f"{where}: report.metric: found {metric!r}, which counts mistakes, expected a measure that is higher for a better system"
        )
    if re.split(r"[(@]", metric)[0] in CONSTANT:
        raise UserError(
            f"{where}: report.metric: found {metric!r}, a count that does not say how good a system is, expected a measure such as nDCG@10"
        )
    unset = [name for name, entry in parameters.fuse.items() if entry.setting is None]
    if unset and needs_texts(parse([metric], 1)):
        raise UserError(
            f"{where}: report.metric: found {metric!r}, which reads documents, expected a measure of the runs alone, by which "
            f"fuse.{unset[0]} is chosen on dev; name another, or set its weight or k"
        )


def check_moved(sections: Mapping[str, Any], where: str) -> None:
    """Check that no key is in a section where only older versions had it."""
    moved = {key: value for key, value in entries(sections, "evaluate").items() if key in RETRIEVE}
    if moved:
        moved_text = json.dumps(moved).replace('"', "").replace("True", "true")
        raise UserError(
            f"{where}: evaluate.{next(iter(moved))}: moved to section retrieve; remove {', '.join(moved)} from evaluate, and add "
            f"retrieve: {moved_text}, or run retemper upgrade, which does it"
        )


def check_age(sections: Mapping[str, Any], where: str) -> None:
    """Check that no section of newer versions is missing; `retemper upgrade` adds these to a file of an older version."""
    if names := missing_sections(sections):
        others_note = f" ({', '.join(names[1:])} too)" if names[1:] else ""
        raise Missing(
            f"{where}: {names[0]}: missing{others_note}, a section of newer versions; run retemper upgrade, which adds it with its default"
        )


def check_sources(sections: Mapping[str, Any], where: str) -> None:
    """Check that no source is an out of this project, since outs depend on the parameters: the graph would depend on itself."""
    outs = {Path("data", kind).resolve() for kind in ("articles", "corpus", "encoders", "rerankers")}
    for key, value in source_keys(sections):
        place = local_path(value.partition(":")[2] or value).resolve()
        if outs & {place, *place.parents}:
            raise UserError(f"{where}: {key}: found {value}, an output of this project's stages; copy it out of data/, and name the copy")


def check_names(sections: Mapping[str, Any], where: str) -> None:
    """Check the names of entries: their form, and that none is reserved or used twice in a namespace."""
    for namespace in (SYSTEMS, NEGATIVES, ("study",), ("analyses",), ("extra",)):
        owner: dict[str, str] = {}
        for section in namespace:
            for name in entries(sections, section):
                key = f"{where}: {section}.{name}"
                if not isinstance(name, str) or not NAME.fullmatch(name):
                    raise UserError(f"{key}: found the name {name!r}, expected up to 64 lowercase letters, digits and _, a letter first")
                if name in RESERVED:
                    raise UserError(f"{key}: the name {name} is reserved ({', '.join(RESERVED)}); choose another")
                if name in owner:
                    raise UserError(f"{key}: the name {name} is taken by {owner[name]}.{name}; choose another")
                owner[name] = section


def _with_two_towers(sections: Mapping[str, Any]) -> set[str]:
    """The models with a query tower of their own: trained entries of adore, and what starts from one."""
    starts = {name: entry.get("init") for name, entry in entries(sections, "rounds").items()}
    starts |= {name: entry.get("round") for name, entry in entries(sections, "adore").items()}
    split = {name for name, entry in entries(sections, "adore").items() if entry.get("steps") != 0}
    while later := {name for name, start in starts.items() if start in split} - split:
        split |= later
    return split


def check_references(sections: Mapping[str, Any], where: str) -> None:
    """Check that every reference names an existing entry, and that no entry depends on itself."""
    encoders = {"base", *(name for section in ENCODERS for name in entries(sections, section))}
    negatives = {*GIVEN_NEGATIVES, *(name for section in NEGATIVES for name in entries(sections, section))}
    listed = negatives - {"none", "random"}  # have a list for each query
    rounds = entries(sections, "rounds")
    for name in entries(sections, "mine"):
        if name not in rounds:
            raise UserError(f"{where}: mine.{name}: no round {name}; negatives are mined with a round: {', '.join(rounds)}")
    rerankers, runs = set(entries(sections, "rerankers")), {"bm25", *rounds, *entries(sections, "adore"), *entries(sections, "fuse")}
    systems = {*runs, *entries(sections, "rerank"), *entries(sections, "rescore")}
    split = _with_two_towers(sections)
    fields: dict[str, dict[str, set[Any]]] = {
        "rounds": {"init": encoders, "negatives": negatives},
        "pretrain": {"init": encoders - split},  # pretrains one tower for both sides
        "mix": {"first": negatives, "second": negatives},
        "rerankers": {"negatives": negatives},
        "teacher": {"negatives": negatives, "reranker": rerankers},
        "rerank": {"run": runs, "reranker": rerankers},
        "rescore": {"run": runs, "round": set(rounds), "encoder": {*rounds, *entries(sections, "adore")}},
        "fuse": {"first": systems, "second": systems},
        "adore": {"round": set(rounds), "negatives": negatives},
        "study": {"round": set(rounds)},
        "analyses": {"round": set(rounds), "negatives": listed},
    }
    for section, references in fields.items():
        for name, entry in entries(sections, section).items():
            for field, known in references.items():
                if entry[field] not in known:
                    hint = f"; add mine.{entry[field]}" if known in (negatives, listed) and entry[field] in rounds else ""
                    names = ", ".join(sorted(known - {name})) or f"the entries of {section if field == 'run' else 'rerankers'} (none yet)"
                    raise UserError(f"{where}: {section}.{name}.{field}: found {entry[field]!r}, expected one of {names}{hint}")
    for name, entry in entries(sections, "rescore").items():
        tower = entries(sections, "adore").get(entry["encoder"], {}).get("round", entry["encoder"])
        if tower != entry["round"]:
            raise UserError(
                f"{where}: rescore.{name}.encoder: found {entry['encoder']}, whose queries are made for the vectors of {tower}, "
                f"expected {entry['round']} as in rescore.{name}.round, or an adore over it"
            )
    cycle = find_cycle(needs(sections))
    if cycle:
        shown = [name.split(".")[1] if name.startswith(ENCODERS) else name for name in cycle[:-1] if not name.startswith("mine.")]
        first = next(name for name in cycle if not name.startswith("mine."))
        remedy = (
            "name another system in one of them" if first.startswith(ORDERED) else "let one of them start from base or earlier negatives"
        )
        raise UserError(f"{where}: {first}: depends on itself: {' -> '.join([*shown, shown[0]])}; {remedy}")


def check_official(parameters: Parameters, where: str) -> None:
    """Check that the source's official negatives are not used if its queries, to which they belong, are not read."""
    if parameters.queries == "pseudo":
        entries = {section: getattr(parameters, section) for section in ("rounds", "teacher", "rerankers", "adore", "analyses")}
        named_negatives = {
            f"{section}.{name}.negatives": [entry.negatives] for section, named in entries.items() for name, entry in named.items()
        } | {f"mix.{name}": [entry.first, entry.second] for name, entry in parameters.mix.items()}
        for key, negatives in named_negatives.items():
            if "official" in negatives:
                raise UserError(
                    f"{where}: {key}: found official, negatives of the source's own queries, but queries is pseudo; expected bm25"
                )


def check_extra(parameters: Parameters, where: str) -> None:
    """Check the further data sets: each has a valid SPEC, its grades suit the measures, and no two entries are the same."""
    seen = dict[str, str]()
    for name, entry in parameters.extra.items():
        try:
            spec = str(parse_dataset(entry.source))
        except UserError as error:
            raise UserError(f"{where}: extra.{name}.source: {error}") from None
        settings = parameters.evaluate.model_dump() | {"relevance": entry.relevance}
        validate(type(parameters.evaluate), settings, where, section=f"extra.{name}")
        if other := seen.get(key := entry.model_copy(update={"source": spec}).model_dump_json()):
            raise UserError(f"{where}: extra.{name}: found the same as extra.{other}; remove one of the two")
        seen[key] = name


def check_rounds(parameters: Parameters, where: str) -> None:
    """Check what each round requires of its negatives and of the round that it continues."""
    rounds = parameters.rounds
    for name, entry in rounds.items():
        if entry.optimizer_from == "fresh":
            continue
        previous = rounds.get(entry.init)
        if previous is None or previous.optimizer != entry.optimizer:
            found = f"{entry.init!r}, which is not a round" if previous is None else f"a round trained with {previous.optimizer}"
            expected = f"expected a round trained with {entry.optimizer}, or optimizer_from: fresh"
            raise UserError(f"{where}: rounds.{name}.init: found {found}; {expected}")
        if previous.lora:
            raise UserError(
                f"{where}: rounds.{name}.init: found {entry.init!r}, whose optimizer state is of LoRA adapters, since merged; expected a "
                "round with lora: null, or optimizer_from: fresh"
            )
        if previous.steps == 0:
            raise UserError(
                f"{where}: rounds.{name}.init: found {entry.init!r}, a round of no steps, which has no optimizer state to continue from; "
                f"expected a round that trains{f', such as {previous.init}' if previous.init in rounds else ''}, or optimizer_from: fresh"
            )
    for name, entry in rounds.items():
        key = f"{where}: rounds.{name}"
        if entry.steps == 0:
            continue
        depth, limit_key = _depth(parameters, entry.negatives)
        available = min(entry.window[1], depth) - entry.window[0] + 1
        if entry.hard > max(available, 0):
            raise UserError(
                f"{key}.hard_negatives: found {entry.hard}, expected at most {max(available, 0)}: {limit_key} keeps ranks 1 to {depth}, "
                f"window is {list(entry.window)}; raise {limit_key}, or ask for fewer"
            )
        scored = [*parameters.mine, *parameters.teacher]
        if (entry.distilled or entry.sampling == "simans") and entry.negatives not in scored:
            setting = f"loss {entry.loss}" if entry.distilled else "sampling simans"
            known = ", ".join(scored) or "none yet; add one"
            raise UserError(
                f"{key}.negatives: found {entry.negatives!r}, expected a mine or a teacher ({known}): {setting} needs the positives' scores"
            )
        if entry.positive_ranks is not None:
            unfiltered = [name for name, mine in parameters.mine.items() if mine.keeps_first_ranks]
            if entry.negatives not in ["bm25", *unfiltered]:
                raise UserError(
                    f"{key}.negatives: found {entry.negatives!r}, expected bm25 or a mine without skip and margins "
                    f"({', '.join(['bm25', *unfiltered])}), as positive_ranks makes its first ranks positives"
                )
            if entry.positive_ranks > depth:
                raise UserError(f"{key}.positive_ranks: found {entry.positive_ranks}, expected at most {limit_key}, which is {depth}")
        if entry.optimizer_from == "continue":
            earlier_steps = _steps_behind(parameters, entry.init)
            total = None if earlier_steps is None or entry.steps is None else earlier_steps + entry.steps
            if total is not None and total > (entry.schedule_steps or 0):
                raise UserError(
                    f"{key}.schedule_steps: found {entry.schedule_steps}, expected at least {total}, the steps of the whole chain"
                )


def _steps_behind(parameters: Parameters, name: str) -> int | None:
    """The steps of a round and of those that it continues; None if `epochs` decides."""
    total = 0
    while True:
        entry = parameters.rounds[name]
        if entry.steps is None:
            return None
        total += entry.steps
        if entry.optimizer_from != "continue":
            return total
        name = entry.init


def _depth(parameters: Parameters, negatives: str) -> tuple[int, str]:
    """The most negatives that a query can have in a source, and the key that sets this."""
    if negatives in parameters.mine:
        return parameters.mine[negatives].depth, f"mine.{negatives}.depth"
    if negatives in parameters.mix:
        mix = parameters.mix[negatives]  # it ends where one of its sources does
        shares = ((mix.first, mix.ratio), (mix.second, 1 - mix.ratio))
        sources = [(min(int(depth / share) + 1, sys.maxsize), key) for name, share in shares for depth, key in [_depth(parameters, name)]]
        return min((mix.depth, f"mix.{negatives}.depth"), *sources)
    if negatives in parameters.teacher:
        teacher = parameters.teacher[negatives]
        return min((teacher.depth, f"teacher.{negatives}.depth"), _depth(parameters, teacher.negatives))
    if negatives == "bm25":
        return parameters.bm25.depth, "bm25.depth"
    return (parameters.prepare.official_depth, "prepare.official_depth") if negatives == "official" else (sys.maxsize, negatives)
