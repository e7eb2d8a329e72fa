"""Offline work in the order that fills a GPU: BlendServe, and feedback control beyond it.

A file of requests becomes a compressed `tree` of shared prefixes; output `lengths` are sampled
and learnt; `work` says what each request costs in computing and in reading memory; `ordering` sorts
and splits the tree by the ratio of the two; `dual_scan` feeds an engine from both ends of the
order, and `feedback` by the work that remains. Nothing here does I/O or reads a clock: a feed is
told the engine's steps.
"""
