// The machine's limits, measured.
#pragma once

#include <nanobind/nanobind.h>

namespace corepipe {

// Adds probe_read and probe_products to the module.
void bind_probe(nanobind::module_& m);

}  // namespace corepipe
