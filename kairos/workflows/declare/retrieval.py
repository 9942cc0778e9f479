"""Methods of a flow that declare operators of retrieval."""

from collections.abc import Sequence

from kairos.workflows.compile.operators import (
    ENGINE_RETRIES,
    Chunking,
    Embedding,
    Ingest,
    OnError,
    Rerank,
    Search,
)
from kairos.workflows.declare.declared import DeclaredOperators
from kairos.workflows.declare.operand import Operand


class RetrievalOperators(DeclaredOperators):
    """Declarations of retrieval. For the values see `workflows/compile/retrieval.py`.

    Where an operand is expected, a list of operands or a constant will do.
    """

    def chunk(
        self,
        name: str,
        text: object,
        *,
        size: int = Chunking().size,
        overlap: int = Chunking().overlap,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Declare passages of `size` words of a text, or of texts, as a list.

        Each shares `overlap` words with the one before.
        """
        return self._add(name, Chunking(size, overlap), {"text": text}, after=after)

    def embed(
        self,
        name: str,
        texts: object,
        *,
        model: str | None = None,
        batch: int | None = None,
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Embed a text, or each of a list of texts, `batch` at a time.

        By default a batch is what `kairos profile` found best, else 16 texts.
        """
        return self._add(
            name,
            Embedding(model, batch),
            {"texts": texts},
            after=after,
            on_error=on_error,
            default=default,
            retries=retries,
        )

    def ingest(
        self,
        name: str,
        texts: object,
        vectors: object,
        *,
        collection: str | None = None,
        batch: int | None = None,
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Declare a collection of this row, to be searched; or additions to a named one.

        For a named collection, the value is its name (`collection`) and the `count` of passages,
        which are added `batch` at a time.
        """
        return self._add(
            name,
            Ingest(collection, batch),
            {"texts": texts, "vectors": vectors},
            after=after,
            on_error=on_error,
            default=default,
            retries=retries,
        )

    def search(
        self,
        name: str,
        vectors: object,
        *,
        collection: object,
        top_k: int = Search().top_k,
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Declare a search: the `top_k` passages nearest to any of some vectors, best first.

        The value is a list of `text` and `score`. `vectors`: one, or a list. `collection`: a value
        of `ingest`, a list of such, or the name of a collection that outlives the run.
        """
        inputs = {"vectors": vectors}
        named = collection if isinstance(collection, str) else None
        if named is None:
            inputs["collection"] = collection
        return self._add(
            name,
            Search(top_k, named),
            inputs,
            after=after,
            on_error=on_error,
            default=default,
            retries=retries,
        )

    def rerank(
        self,
        name: str,
        query: object,
        passages: object,
        *,
        top_k: int = Rerank().top_k,
        model: str | None = None,
        batch: int | None = None,
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Declare a ranking: the `top_k` passages that answer the query best, best first.

        The passages are texts, or a value of `search`; the value is a list of `text` and `score`.
        `batch` passages are ranked at a time.
        """
        return self._add(
            name,
            Rerank(top_k, model, batch),
            {"query": query, "passages": passages},
            after=after,
            on_error=on_error,
            default=default,
            retries=retries,
        )
