#!/bin/bash
# Writes a finished study to one file for other people, checks the file without a server, and imports it into another service.
scalelab study init scaling
scalelab study submit scaling.yaml --set fixed.train_samples=512 --set fixed.image_size=8
scalelab study wait last
scalelab study bundle last -o scaling.tar
scalelab verify scaling.tar --server unix:/nowhere
scalelab study import scaling.tar --server "$OTHER_SERVER"
scalelab study import scaling.tar --server "$OTHER_SERVER"
