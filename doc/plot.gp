# plot.gp - one picture of doc/plot: the ratio to the roofline against n
# SPDX-License-Identifier: BSD-2-Clause
#
# Variables: data (blocks of "n ratio", separated by two blank lines, each headed by its title),
# blocks, title, output, term.
if (term eq "png") {
	set terminal pngcairo size 900, 560 font ",11"
} else {
	set terminal svg size 900, 560 dynamic font "sans-serif,13" background "white"
}
set output output
set title title noenhanced
set xlabel "n"
set ylabel "ratio to the roofline"
set logscale x 2
set format x "%.0f"
set xtics rotate by -45
set yrange [0:*]
set grid
set key outside right top noenhanced
set style line 100 lc rgb "#999999" dt 2
set arrow from graph 0, first 1 to graph 1, first 1 nohead ls 100
plot for [i = 0 : blocks - 1] data index i using 1:2 with linespoints pt 7 ps 0.5 title columnheader(1)
