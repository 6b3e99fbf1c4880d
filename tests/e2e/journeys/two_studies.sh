#!/bin/bash
# Compares two studies: writes a LaTeX table with intervals, and a picture.
scalelab study init scaling
scalelab study submit scaling.yaml --set study=small-batch --set fixed.train_samples=512 --set fixed.image_size=8
scalelab study submit scaling.yaml --set study=large-batch --set fixed.train_samples=512 --set fixed.image_size=8 --set scaling.global_batch=128
scalelab study wait small-batch
scalelab study wait large-batch
scalelab study compare large-batch small-batch --file comparison.tex
scalelab study compare large-batch small-batch --panels throughput,speedup,efficiency,memory --file comparison.pdf
