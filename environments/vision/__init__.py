"""Questions about pictures: charts, tables, screens, forms, maps and figures, drawn by `canvas.py` for each task.

Every answer is exact and can be read off the picture: values stand on grid lines, texts are drawn large enough.
One file an environment, on `picture.Picture`; `rows.py` lists them.
"""
