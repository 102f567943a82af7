"""langchain-openai's embeddings under langchain-tests' suites, by pytest."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from tests.clients.pytest_rows import run
from tests.clients.rows import KEY, MODEL, URL

TEXTS = ["a cat sat on the mat", "shares fell on Monday", "it rains in spring"]


class Declared:
    """The parameters of the suites."""

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"base_url": URL, "api_key": KEY, "model": MODEL, "check_embedding_ctx_length": False}


class TestOpenAIEmbeddings(Declared, EmbeddingsIntegrationTests):
    """The whole suite, and what it leaves out."""

    def test_a_text_alone_has_the_vector_it_has_among_others(self, model: Embeddings) -> None:
        together = model.embed_documents(TEXTS)
        assert together == [model.embed_query(text) for text in TEXTS]

    def test_the_nearest_text_is_found(self, model: Embeddings) -> None:
        store = InMemoryVectorStore.from_texts(TEXTS, model)
        (found,) = store.similarity_search("a pet on a rug", k=1)
        assert found.page_content == TEXTS[0]

    def test_more_texts_than_a_request_has(self, model: Embeddings) -> None:
        vectors = model.embed_documents([f"number {at}" for at in range(1100)])
        assert len(vectors) == 1100
        assert vectors[1099] == model.embed_query("number 1099")

    @pytest.mark.xfail(
        reason="vectors of OpenAI's own token ids: they look like ids of any model", strict=True
    )
    def test_texts_as_ids_of_another_tokenizer(self) -> None:
        """The package sends this by default, without `check_embedding_ctx_length=False`."""
        as_it_comes = OpenAIEmbeddings(base_url=URL, api_key=KEY, model=MODEL, tiktoken_enabled=True)
        assert as_it_comes.embed_query("a cat") == self._plain().embed_query("a cat")

    def _plain(self) -> OpenAIEmbeddings:
        return OpenAIEmbeddings(**self.embedding_model_params)


class TestOpenAIEmbeddingsUnit(Declared, EmbeddingsUnitTests):
    """The constructor's arguments are as the suite requires."""


if __name__ == "__main__":
    sys.exit(run(__file__, {}))
