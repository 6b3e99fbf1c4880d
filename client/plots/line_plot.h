// Lines over a linear axis, such as learning curves. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/output/terminal.h"
#include "client/plots/svg_elements.h"

namespace scalelab::client {

// A line. Points whose value is not finite interrupt it.
struct PlotLine {
  std::string label;         // lines with equal labels have one colour and one entry in the legend
  std::vector<double> x, y;  // of equal length
  std::string source = {};   // what the line was read from, such as the number of a run
};

struct LinePlot {
  std::string title, subtitle;
  std::string x_title, y_title;
  std::vector<PlotLine> lines;
};

// Returns whether a line has a point.
bool HasPoints(const LinePlot& plot);
// Returns a self-contained SVG 1.1 document. The same plot always gives the same bytes. All text is escaped.
std::string SvgLines(const LinePlot& plot, const PictureStyle& style = {});
// Returns a plot with characters, as TerminalPlot does; empty if no line has a point.
std::string TerminalLines(const LinePlot& plot, const Terminal& terminal);

}  // namespace scalelab::client
