// Checks the templates of commands ("--lr={learning_rate}"). Internal to this library.
#pragma once

#include "study/grid.h"

namespace scalelab {

// Adds a violation for each template in a command of the grid whose name is not a key that every run has.
void CheckTemplates(const Grid& grid, Violations* violations);

}  // namespace scalelab
