"""cohere, the Python SDK: rankings and vectors by both of its versions, plain and async."""

from __future__ import annotations

import cohere
from cohere.errors import BadRequestError, NotFoundError

from tests.clients.rows import KEY, MODEL, URL, Rows, raises

ROOT = URL.removesuffix("/v1")
QUERY = "Which animal is a pet?"
TEXTS = ["Shares fell on Monday.", "A cat is kept as a pet in many homes.", "It rains in spring."]
ASKED = {"model": MODEL, "query": QUERY, "documents": TEXTS}

row = Rows()
first = cohere.Client(api_key=KEY, base_url=ROOT)
second = cohere.ClientV2(api_key=KEY, base_url=ROOT)


def ranks(answer: cohere.RerankResponse | cohere.V2RerankResponse) -> list[tuple[int, float]]:
    return [(one.index, one.relevance_score) for one in answer.results]


@row
def rerank() -> None:
    """Client.rerank: the best document first, all of them, with their texts"""
    answer = first.rerank(**ASKED, return_documents=True)
    assert [one.document.text for one in answer.results] == [TEXTS[one.index] for one in answer.results]
    scores = [score for _, score in ranks(answer)]
    assert (answer.results[0].index, len(scores)) == (1, 3)
    assert scores == sorted(scores, reverse=True)


@row
def rerank_v2() -> None:
    """ClientV2.rerank: the scores of the first version"""
    assert ranks(second.rerank(**ASKED)) == ranks(first.rerank(**ASKED))


@row
def best() -> None:
    """top_n in both versions"""
    best = ranks(first.rerank(**ASKED))[:1]
    assert ranks(first.rerank(**ASKED, top_n=1)) == ranks(second.rerank(**ASKED, top_n=1)) == best


@row
def without_documents() -> None:
    """return_documents=False: no texts"""
    answer = first.rerank(**ASKED, return_documents=False)
    assert all(one.document is None for one in answer.results)


@row
def objects() -> None:
    """documents as objects with a text"""
    objects = [{"text": text} for text in TEXTS]
    answer = first.rerank(model=MODEL, query=QUERY, documents=objects)
    assert ranks(answer) == ranks(first.rerank(**ASKED))


@row
def cut() -> None:
    """max_tokens_per_doc: a long document by its beginning"""
    long = [text + " and then" * 500 for text in TEXTS]
    answer = second.rerank(model=MODEL, query=QUERY, documents=long, max_tokens_per_doc=8)
    assert answer.results[0].index == 1


@row
def meta() -> None:
    """meta: the version and the units that are billed; the answer's id"""
    for client, version in ((first, "1"), (second, "2")):
        answer = client.rerank(**ASKED)
        assert answer.id
        assert answer.meta is not None
        assert answer.meta.api_version.version == version
        assert answer.meta.billed_units.search_units == 1


@row
def raw_response() -> None:
    """with_raw_response: headers and data"""
    answer = second.with_raw_response.rerank(**ASKED)
    assert answer.headers["x-request-id"]
    assert ranks(answer.data) == ranks(second.rerank(**ASKED))


@row
async def rerank_async() -> None:
    """AsyncClient.rerank"""
    async with cohere.AsyncClient(api_key=KEY, base_url=ROOT) as one:
        assert ranks(await one.rerank(**ASKED)) == ranks(first.rerank(**ASKED))


@row
async def rerank_v2_async() -> None:
    """AsyncClientV2.rerank"""
    async with cohere.AsyncClientV2(api_key=KEY, base_url=ROOT) as one:
        assert ranks(await one.rerank(**ASKED)) == ranks(second.rerank(**ASKED))


@row
def embed() -> None:
    """embed in both versions, with types of vectors and without: the same vectors"""
    asked = {"model": MODEL, "texts": TEXTS, "input_type": "search_document"}
    plain = first.embed(**asked).embeddings
    assert len(plain) == len(TEXTS)
    for one in (first, second):
        assert one.embed(**asked, embedding_types=["float"]).embeddings.float_ == plain


@row
def embed_type() -> None:
    """embed: types that are not made are refused by name"""
    with raises(BadRequestError) as caught:
        second.embed(model=MODEL, texts=TEXTS, input_type="search_query", embedding_types=["int8"])
    assert caught.error.body["error"]["param"] == "embedding_types[0]"


@row
def empty() -> None:
    """no documents: BadRequestError that names them"""
    with raises(BadRequestError) as caught:
        second.rerank(model=MODEL, query=QUERY, documents=[])
    assert caught.error.body["error"]["param"] == "documents"


@row
def unknown_model() -> None:
    """a model that is not there: NotFoundError"""
    with raises(NotFoundError):
        second.rerank(model="rerank-v4.0", query=QUERY, documents=TEXTS)


@row.refused("rank_fields", "a document is a text")
def fields() -> None:
    """rank_fields: documents with fields of their own"""
    first.rerank(model=MODEL, query=QUERY, documents=[{"text": "a", "title": "b"}], rank_fields=["title"])


@row.refused("max_chunks_per_doc", "a document that is too long is refused, or cut by max_tokens_per_doc")
def chunks() -> None:
    """max_chunks_per_doc"""
    first.rerank(**ASKED, max_chunks_per_doc=4)


if __name__ == "__main__":
    row.run()
