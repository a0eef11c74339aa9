"""`retemper new`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import group
from tasks.core.errors import UserError

app = group()
Text = str | None


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The project, which must not exist yet, or be empty.")],
    *,
    data: Annotated[
        Text,
        typer.Option(
            metavar="SPEC", help="A folder (BEIR, CSV, MS MARCO, Parquet), a file of questions and answers, or a SPEC as in docs/data.md."
        ),
    ] = None,
    queries: Annotated[
        Text, typer.Option(metavar="KIND", help="corpus (the data's own judged queries) or pseudo (made from the documents).")
    ] = None,
    encoder: Annotated[Text, typer.Option(metavar="SOURCE", help="Hugging Face id, folder, or package:MODULE/FOLDER.")] = None,
    share: Annotated[Text, typer.Option(metavar="PLACE", help="The team's remote (a folder or URL), cache:FOLDER, or none.")] = None,
    document_length: Annotated[
        Text, typer.Option(metavar="TOKENS", help="Tokens to read from each document; auto: chosen from the data.")
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Ask nothing: use the default for each question without a flag; --data is still required.")
    ] = False,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another edit of params.yaml, as in retemper run.")
    ] = None,
    code: Annotated[str, typer.Option(metavar="SOURCE", help="URL or folder of Retemper's code; default: the installed one.")] = "",
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="PROJECT",
            exists=True,
            file_okay=False,
            help="A finished project, whose recorded times are scaled to estimate this one's.",
        ),
    ] = None,
) -> int:
    """Start a project for your own data: asks five questions, or takes their answers as flags."""
    from flows.projects import answers
    from flows.projects.new import Answers, new, refuse_place
    from flows.repository.git import refuse_no_git

    refuse_no_git()
    refuse_place(folder)
    flag_values = {"data": data, "queries": queries, "encoder": encoder, "share": share, "length": document_length}
    missing = [answers.QUESTIONS[name].flag for name, answer in flag_values.items() if answer is None and (name == "data" or not defaults)]
    is_interactive = sys.stdin.isatty() and not defaults
    if missing and not is_interactive:
        raise UserError(f"new: found no {', '.join(missing)}, and no terminal to ask for them; give them, or --data and --defaults")

    def answer(name: str, default: Text = None, *, read: Callable[[str], str] | None = None) -> str:
        question, value = answers.QUESTIONS[name], flag_values[name]
        read = read or question.read
        if value is not None:
            return read(value)
        if not is_interactive and default is not None:
            return read(default)
        while True:
            try:
                return read(str(typer.prompt(question.text, default=default)))
            except UserError as error:
                print(f"retemper: {error}", file=sys.stderr)
            except typer.Abort:
                raise KeyboardInterrupt(2) from None

    def length(most: int, suggested: int, limit: int) -> str:
        if is_interactive and document_length is None:
            print(f"95% of the documents have at most {most} tokens.")
        return answer("length", str(suggested), read=lambda text: answers.read_length(text, limit))

    dataset = answer("data")
    wanted = Answers(
        data=dataset,
        queries=answer("queries", answers.default_queries(dataset)),
        encoder=answer("encoder", answers.ENCODER),
        share=answer("share", answers.NONE),
        length=length,
        sets=assignments or [],
        code=code,
        like=like.absolute() if like else None,
    )
    if document_length is not None:
        answers.QUESTIONS["length"].read(document_length)
    return new(folder, wanted, print)
