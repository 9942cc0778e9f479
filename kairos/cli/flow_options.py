"""Options that `kairos run`, `profile`, `plan` and `runs` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos.core import SetupError
from kairos.settings import PASS_NAMES

if TYPE_CHECKING:
    from kairos.settings import RetrievalSettings


FlowFile = Annotated[
    Path,
    typer.Argument(
        metavar="FLOW",
        help="A .yaml file, a .py file with one Flow in it, or an OpenAI batch, .jsonl.",
    ),
]
FunctionsFile = Annotated[
    Path | None,
    typer.Option("--functions", help="The .py file with the Functions that a YAML flow calls."),
]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", help="An engine, as `kairos serve` takes it; repeat for each."),
]
Url = Annotated[
    str | None, typer.Option(help="Instead of engines: a Kairos that runs, http://HOST:PORT.")
]
ApiKeyEnv = Annotated[
    str | None, typer.Option(help="Environment variable with your API key, for --url.")
]
Model = Annotated[
    str | None,
    typer.Option(help=r"Model for calls without one in the flow \[the only one served]."),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        help=f"Switch a pass off: {', '.join(PASS_NAMES)}; repeat. Results stay the same.",
    ),
]
Embedders = Annotated[
    list[str] | None,
    typer.Option(
        "--embedder",
        help="Serves /v1/embeddings, for operators of kind embed: http://HOST:PORT"
        r"\[,api_key_env=VARIABLE]; repeat for each.",
    ),
]
Rerankers = Annotated[
    list[str] | None,
    typer.Option("--reranker", help="Serves /v1/rerank, for operators of kind rerank; the same."),
]
CollectionsPlace = Annotated[
    str | None,
    typer.Option(
        "--collections",
        help="Where collections with a name are kept: a directory, or a database with pgvector, "
        r"postgresql://\[USER@]HOST\[:PORT]/NAME.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="Drive the rows by partitions on Ray: local-ray, or ray://HEAD:PORT of a cluster "
        "(with --results). Needs the extra ray.",
    ),
]
Partitions = Annotated[
    int | None,
    typer.Option(min=1, help=r"Number of parts, for --on \[one for each CPU of the cluster]."),
]
Results = Annotated[
    str | None,
    typer.Option(
        help="Keep what the run finds out in a PostgreSQL, so that other hosts can drive it and go "
        r"on with it: postgresql://\[USER@]HOST\[:PORT]/NAME \[files of this host]."
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        envvar="KAIROS_RUNS",
        help=r"Where runs and the cache are kept, for you alone \[~/.local/state/kairos].",
    ),
]


def absolute(path: Path | None) -> str | None:
    """Return the absolute path, for storage: a run may be resumed from another directory."""
    return None if path is None else str(path.absolute())


def retrieval(
    embedder: list[str] | None, reranker: list[str] | None, collections: str | None
) -> "RetrievalSettings | None":
    """Return the settings in these options; None if all are missing.

    Raises SetupError: An option is invalid.
    """
    from kairos.settings import RetrievalSettings, is_postgres

    if not embedder and not reranker and collections is None:
        return None
    if collections and not is_postgres(collections) and "://" not in collections:
        collections = str(Path(collections).absolute())
    try:
        return RetrievalSettings(
            embedders=tuple(embedder or ()),
            rerankers=tuple(reranker or ()),
            collections=collections,
        )
    except ValueError as error:
        raise SetupError(str(error)) from None


def switched_off(without: list[str]) -> dict[str, bool]:
    """Return the passes that are off, as plans take them. Raises SetupError: A pass is unknown."""
    if unknown := [name for name in without if name not in PASS_NAMES]:
        raise SetupError(f"--without {unknown[0]}: there are {', '.join(PASS_NAMES)}")
    return dict.fromkeys(without, False)
