#!/bin/bash
# Runs the user's own PyTorch script with several values of dropout on 2 ranks, from an empty directory to a figure with learning curves.
scalelab study init script
scalelab study submit script.yaml --set matrix.ranks=[2]
scalelab study wait last
scalelab plot last --y train/loss --by params.dropout --file loss.pdf
