"""The developers' tool behind `make notebooks`. Readers never need it.

The `.ipynb` files under notebooks/ and labs/ are the only source of the chapters: there
is no paired script. To write or rework one outside JupyterLab, draft it as a percent
script anywhere outside the repository and bring it in:

    python -m course.authoring to-script notebooks/02_collectives.ipynb /tmp/02.py
    (edit /tmp/02.py)
    python -m course.authoring from-script /tmp/02.py notebooks/02_collectives.ipynb
    make notebooks NOTEBOOK=notebooks/02_collectives.ipynb

Cells that did not change keep their ids, so a diff shows only what did.

`build` fills the shown cells, runs the notebook from the top in a fresh kernel, turns
live figures into small pictures, and drops whatever differs from one run to the next.
A second build changes nothing. `check` says what a build would have to mend without
running anything. `cover` draws the README's picture, notebooks/cover.svg.

A shown cell holds the source of one name of the package, letter for letter. Write only
its first line, `# shown from course.parallel.collectives: ring_all_reduce`. A method is
named with its class, `Unit.reduce`; it loses its indent, and a last line puts it back.

Tags that matter: `raises-exception` (the cell is meant to raise), `nbval-ignore-output`
(its output cannot be equal twice), `exercise` (the reader defines a name of the package).
"""
