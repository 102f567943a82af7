// The machine's limits, measured.
#pragma once

#include <nanobind/nanobind.h>

namespace corepipe {

// Adds probe_read, probe_vnni and probe_bf16 to the module.
void bind_probe(nanobind::module_& m);

}  // namespace corepipe
