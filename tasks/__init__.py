"""The flow of data between stages. Each stage is `python -m tasks.STAGE`, a folder here.

    source.json -> prepare -> corpus -+-> tokenize -> tokens ----------------------+
                                      +-> bm25 -> index, candidates, negatives     |
    source.json -> base -> encoder, tokenizer ------------------------------------+
    source.json -> articles -> chunk -> chunks -> pretrain@p -> encoder -----------+
                                                                                   v
      for each round r:   train@r -> encode@r -> vectors -+-> index@r -> search, serving
                                                          +-> mine@r -> negatives of later rounds
                                                          +-> adore@a -> query encoder, index
      bm25, every round and adore -> retrieve -> runs (-> fuse -> runs) -> evaluate -> metrics -> report

Further stages run if params.yaml has entries for them: mix (two sources of negatives in one), reranker (a cross-encoder, used as is or
trained), teacher (its scores, for distillation), rerank (a run reordered by it), rescore (a run reordered by a bi-encoder), fuse (the runs
of two systems in one), study (adore over several indexes, compared). `mine` may search the index instead of the vectors.

With `queries: pseudo`, the stages after prepare read the corpus that `pseudo` writes: the same documents, with queries made from them.

Imports run stage -> core -> third party: `tasks.core` has the code that two or more stages need, and no stage
imports another.
"""
