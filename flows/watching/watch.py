"""`retemper watch`: a page that follows a run, or its current state in a few lines."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.process.display import FEW
from flows.watching import machine
from flows.watching.page import PAGES, parts, shell, summary
from flows.watching.runs import Seen, find, shown
from tasks.core.charts.local import local_app, serve_local


def show(project: Path, *, port: int, text: bool, as_json: bool) -> int:
    """Serve the page until it is stopped, or print the current state of runs; return the exit status."""
    if as_json:
        print(json.dumps([_record(seen) for seen in find(project)], ensure_ascii=False, indent=2))
    elif text:
        print("\n\n".join(map(lines, find(project))) or "no run is recorded in this project yet; start one with retemper run")
    else:
        serve_local(create_app(project), port, "runs continue without it")
    return 0


def lines(seen: Seen) -> str:
    """A run in a few lines: its place and state, and the last line of each running or failed stage."""
    rows = [f"{seen.run.command}, in {seen.place}, since {seen.since}: {summary(seen)}"]
    for stage in seen.run.stages:
        if stage.state in ("running", "failed"):
            rows.append(f"  {stage.name}: {stage.problem or stage.said or stage.state}")
    waiting = [stage.name for stage in seen.run.stages if stage.state == "waiting"]
    if waiting:
        more = f", and {len(waiting) - FEW} more" if len(waiting) > FEW else ""
        rows.append(f"  waiting: {', '.join(waiting[:FEW])}{more}")
    if seen.run.problem not in ("", "stopped") and not any(seen.run.problem.startswith(stage.problem or " ") for stage in seen.run.stages):
        rows.append(f"  {seen.run.problem}")
    return "\n".join(rows)


def _record(seen: Seen) -> dict[str, Any]:
    return {"place": seen.place, "state": seen.state, **asdict(seen.run)}


def create_app(project: Path) -> Any:
    """The web app with the page of `project`'s runs."""
    from fastapi import HTTPException
    from fastapi.responses import FileResponse, HTMLResponse

    app = local_app("retemper watch")
    name = shown(Path(project.resolve().name))

    def choose(seen: Sequence[Seen], place: str | None) -> Seen | None:
        return next((item for item in seen if item.place == place), seen[0] if seen and place is None else None)

    @app.get("/", response_class=HTMLResponse)
    def index() -> str:
        return shell(name)

    @app.get("/api/now")
    def look(place: str | None = None) -> dict[str, Any]:
        seen = find(project)
        chosen = choose(seen, place)
        title = f"{summary(chosen)} - {name}" if chosen else name
        return {"title": title, "machine": machine.describe_load(project), "parts": parts(seen, chosen, place=place)}

    @app.get("/{kind}")
    def finished(kind: str, place: str | None = None) -> FileResponse:
        chosen = choose(find(project), place)
        if chosen is None or kind not in PAGES or not (path := chosen.folder / PAGES[kind]).is_file():
            raise HTTPException(404, f"no {kind}")
        return FileResponse(path, media_type="text/html")

    return app
