"""Offline work in the order that fills a GPU: feedback control, after BlendServe.

A file of requests becomes a compressed `tree` of shared prefixes; `work` says what each request
costs in computing and in reading memory; output lengths are learnt from answers (`survival`);
`feedback` feeds an engine by what remains. Nothing here does I/O or knows the time: a feed hears of
steps.
"""
