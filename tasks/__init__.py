"""The way of the data, drawn; each box is a stage, `python -m tasks.<stage>`, and a folder or file here.

    source.json -> prepare -> corpus -+-> tokenize -> tokens ----------------------+
                                      +-> bm25 -> index, candidates, negatives     |
    source.json -> base -> encoder, tokenizer ------------------------------------+
    source.json -> articles -> chunk -> chunks -> pretrain@p -> encoder -----------+
                                                                                   v
      for each round r:   train@r -> encode@r -> vectors -+-> index@r -> search, serving
                                                          +-> mine@r -> negatives of later rounds
                                                          +-> adore@a -> query encoder, index
      bm25, every round and adore -> retrieve -> runs (-> fuse -> runs) -> evaluate -> metrics -> report

Where params.yaml has entries of theirs: mix (two sources of negatives in one), reranker, teacher, rerank (cross-encoders: trained,
as labels for distillation, as a second stage), rescore (a bi-encoder as one), fuse (the runs of two systems in one), study (figures
over adores). `mine` may search the index in place of the vectors.

With `queries: pseudo` the stages after prepare read the corpus that `pseudo` writes: the same documents, queries made from them.

Imports run stage -> core -> third party: `tasks.core` holds what two or more stages need, and no stage
imports another.
"""
