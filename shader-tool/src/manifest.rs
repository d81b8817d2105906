//! What a set of kernel sources declares.

use serde::Serialize;

/// Every kernel of a [`crate::Library`]. Serializes to JSON.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Manifest {
    /// In the order of the sources, then of their lines.
    pub kernels: Vec<KernelInfo>,
}

/// One entry point: a plain kernel, or one explicit instantiation of a kernel template.
#[derive(Debug, Clone, Serialize)]
pub struct KernelInfo {
    /// The name to ask a pipeline for: the function's own, or the instantiation's `[[host_name]]`.
    pub name: String,
    /// The function's name in the source.
    pub function: String,
    /// Template arguments as written, empty for a plain kernel.
    pub template_arguments: String,
    /// The `.metal` source it is compiled with.
    pub unit: String,
    /// The file that defines it: `unit`, or a header of it.
    pub file: String,
    /// Where the kernel function begins, counted from 1.
    pub line: u32,
    /// Sorted by index.
    pub buffers: Vec<BufferInfo>,
    /// Dynamic threadgroup memory arguments (`[[threadgroup(n)]]`), sorted by index.
    pub threadgroup_arguments: Vec<ThreadgroupInfo>,
    /// Function constants that the kernel or a function it calls mentions, sorted by index.
    pub constants: Vec<ConstantInfo>,
    /// The expression in `[[max_total_threads_per_threadgroup(...)]]`, as written.
    pub max_threads: Option<String>,
    /// It has threadgroup variables or threadgroup arguments.
    pub uses_threadgroup_memory: bool,
    /// It takes a pointer to an atomic in device memory, so results may depend on the order of its threadgroups.
    pub has_device_atomics: bool,
}

/// How a kernel may use a buffer, by its declared type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// `device const T*`, `constant T&`, `constant T*`.
    Read,
    /// `device T*`.
    ReadWrite,
}

/// One buffer argument.
#[derive(Debug, Clone, Serialize)]
pub struct BufferInfo {
    /// The binding index.
    pub index: u32,
    /// The parameter's name.
    pub name: String,
    /// The type it points to, without address space and `const`, as written (a template's parameter names stay).
    pub element: String,
    /// By the declared type.
    pub access: Access,
    /// `constant` rather than `device` memory.
    pub constant_space: bool,
    /// Guarded by a `[[function_constant(...)]]` attribute, so it may stay unbound.
    pub optional: bool,
}

/// One `[[threadgroup(n)]]` argument.
#[derive(Debug, Clone, Serialize)]
pub struct ThreadgroupInfo {
    /// The index that the dispatch gives a size for.
    pub index: u32,
    /// The parameter's name.
    pub name: String,
    /// The type it points to, as written.
    pub element: String,
}

/// Scalar types a function constant can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum ScalarType {
    Bool,
    Short,
    Ushort,
    Int,
    Uint,
    Float,
}

/// One function constant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConstantInfo {
    /// `n` of `[[function_constant(n)]]`.
    pub index: u32,
    /// Its name in the source.
    pub name: String,
    /// Its type.
    pub ty: ScalarType,
    /// The source asks `is_function_constant_defined` about it, so it may stay without a value.
    pub checked_for_definition: bool,
}
