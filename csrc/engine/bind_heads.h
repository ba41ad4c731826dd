// The part of the binding that makes the drafts of heads.
#pragma once
#include <nanobind/nanobind.h>

void bind_heads(nanobind::module_& m);
