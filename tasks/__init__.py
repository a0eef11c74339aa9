"""The way of the data, drawn; each box is a stage, `python -m tasks.<stage>`, and a folder or file here.

    source.json -> prepare -> corpus -+-> tokenize -> tokens ----------------------+
                                      +-> bm25 -> index, candidates, negatives     |
    source.json -> base -> encoder, tokenizer ------------------------------------+
    source.json -> articles -> chunk -> chunks -> pretrain@p -> encoder -----------+
                                                                                   v
      for each round r:   train@r -> encode@r -> index@r -> mine@r -> negatives of later rounds
                                        |
      bm25, every round -----------> evaluate -> metrics, runs -> report

Imports run stage -> core -> third party: `tasks.core` holds what two or more stages need, and no stage
imports another.
"""
