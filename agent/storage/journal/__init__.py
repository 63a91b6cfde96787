"""The journal: observations as they happened, in files.

Every observation has a position that increases across the whole journal. `writer` and `reader` have the two sides,
`segments` the files, `columns` the Arrow columns, `retention` what is removed. `archiver` ships sealed segments to the
`archive`; `places` finds a journal in either place; `failures` are those to read it.
"""
