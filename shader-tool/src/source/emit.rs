//! Translation to C++: edits in place, so that every line keeps its number, and one entry function a kernel at the end.

use super::parse::{Function, Parameter, Tokens, Unit};
use crate::Diagnostic;
use crate::manifest::{Access, BufferInfo, ConstantInfo, KernelInfo, ScalarType, ThreadgroupInfo};
use std::fmt::Write as _;

/// What the C++ is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The emulator on this machine's CPU.
    Host,
    /// NVIDIA GPUs.
    Nvptx,
}

/// A unit and the kernels it defines.
#[derive(Debug)]
pub(crate) struct Module {
    pub unit: Unit,
    pub kernels: Vec<KernelInfo>,
}

impl Module {
    pub fn new(unit: Unit) -> Result<Self, Vec<Diagnostic>> {
        let (mut kernels, mut errors) = (Vec::new(), Vec::new());
        for function in unit.functions.iter().filter(|f| f.is_kernel) {
            let entries: Vec<(String, String)> = if function.template.is_some() {
                let of_this = unit.instantiations.iter().filter(|i| i.function == function.name);
                of_this.map(|i| (i.host_name.clone(), i.arguments.clone())).collect()
            } else {
                vec![(function.name.clone(), String::new())]
            };
            for (name, arguments) in entries {
                match describe(&unit, function, name, arguments) {
                    Ok(info) => kernels.push(info),
                    Err(error) => errors.push(error),
                }
            }
        }
        if errors.is_empty() {
            Ok(Self { unit, kernels })
        } else {
            Err(errors)
        }
    }

    /// The C++ text for `target`.
    pub fn cpp(&self, target: Target) -> String {
        let mut out = String::from("#include <metal_stdlib>\n");
        for constant in &self.unit.constants {
            let (index, name, ty) = (constant.index, &constant.name, &constant.ty);
            let _ = writeln!(out, "#define {name} (MSL_CONSTANT({ty}, {index}))");
            let _ = writeln!(out, "#define MSL_DEFINED_{name} (MSL_CONSTANT_DEFINED({index}))");
        }
        for constant in &self.unit.derived {
            let value = constant.value.replace('\n', " ");
            let _ = writeln!(out, "#define {} ({}({value}))", constant.name, constant.ty);
        }
        out += &self.unit.flat.with_line_markers(&self.edited(target));
        out += "\n#line 1 \"entry-points\"\n";
        for kernel in &self.kernels {
            if let Some(function) = self
                .unit
                .functions
                .iter()
                .find(|f| f.is_kernel && f.name == kernel.function)
            {
                out += &entry(&self.unit, function, kernel, target);
            }
        }
        out
    }

    /// The flat text with everything rewritten that clang would not take.
    fn edited(&self, target: Target) -> String {
        let unit = &self.unit;
        let mut edits: Vec<(Tokens, String)> = Vec::new();
        edits.extend(unit.constants.iter().map(|c| (c.tokens.clone(), String::new())));
        edits.extend(unit.derived.iter().map(|c| (c.tokens.clone(), String::new())));
        edits.extend(unit.instantiations.iter().map(|i| (i.tokens.clone(), String::new())));
        for function in &unit.functions {
            if function.is_kernel {
                let attributes = unit.parameters(function).into_iter().filter_map(|p| p.attribute_tokens);
                edits.extend(attributes.map(|tokens| (tokens, String::new())));
                let markers = function.markers.iter().cloned();
                edits.extend(markers.zip(std::iter::once("static".to_owned()).chain(std::iter::repeat(String::new()))));
            }
            edits.extend(threadgroup_edits(unit, function));
        }
        let mut parentheses = 0usize;
        for at in 0..unit.tokens.len() {
            match unit.word(at) {
                "(" => parentheses += 1,
                ")" => parentheses = parentheses.saturating_sub(1),
                // A value in `constant` memory, rather than a pointer to a kernel's parameters.
                "constant" if target == Target::Nvptx && parentheses == 0 => {
                    let declared = (at + 1..unit.tokens.len()).map(|i| unit.word(i));
                    let mut declared = declared.take_while(|word| !matches!(*word, "=" | ";" | "[" | "(" | "{"));
                    if declared.all(|word| word != "*" && word != "&") {
                        edits.push((at..at + 1, "const".to_owned()));
                    }
                }
                _ => {}
            }
            // clang takes `vec<float, 4>(v)` for a C-style cast, which reinterprets the bits of a vector.
            if unit.word(at) == "vec" && unit.word(at + 1) == "<" {
                let close = unit.close(at + 1);
                if unit.word(close + 1) == "(" {
                    edits.push((at..at + 1, "::msl::make<vec".to_owned()));
                    edits.push((close..close + 1, ">>".to_owned()));
                }
            }
            if unit.word(at) == "is_function_constant_defined" && unit.word(at + 1) == "(" {
                edits.push((at..at + 4, format!("MSL_DEFINED_{}", unit.word(at + 2))));
            }
        }
        edits.sort_by_key(|(tokens, _)| tokens.start);
        apply(unit, &edits)
    }
}

fn apply(unit: &Unit, edits: &[(Tokens, String)]) -> String {
    let text = &unit.flat.text;
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for (tokens, replacement) in edits {
        let bytes = unit.bytes(tokens);
        if bytes.start < from {
            continue; // Inside something that was replaced whole.
        }
        out += &text[from..bytes.start];
        out += replacement;
        out.extend(text[bytes.clone()].chars().filter(|&c| c == '\n'));
        from = bytes.end;
    }
    out += &text[from..];
    out
}

/// Kernel-scope threadgroup variables become references into the threadgroup's memory block (clang refuses automatic
/// variables with an address space, and statics would tie the emulator to one thread) at offsets chained at compile time,
/// since sizes may depend on template parameters.
fn threadgroup_edits(unit: &Unit, function: &Function) -> Vec<(Tokens, String)> {
    let mut previous = "none".to_owned();
    let mut edits = Vec::new();
    for declaration in unit.threadgroup_declarations(function) {
        let mut replacement = String::new();
        for variable in &declaration.variables {
            let (name, ty, dimensions) = (&variable.name, &variable.ty, &variable.dimensions);
            let _ = write!(
                replacement,
                "MSL_THREADGROUP({name}, {previous}, ({ty}), ({dimensions})); "
            );
            previous.clone_from(name);
        }
        edits.push((declaration.tokens, replacement.replace('\n', " ")));
    }
    edits
}

fn pointee(ty: &str) -> Option<(&str, Access, bool)> {
    let base = ty.trim().strip_suffix(['*', '&'])?;
    let mut access = Access::ReadWrite;
    let mut constant = false;
    let mut rest = base.trim();
    loop {
        let word = rest.split_whitespace().next()?;
        match word {
            "device" | "threadgroup" | "volatile" => {}
            "const" => access = Access::Read,
            "constant" => (access, constant) = (Access::Read, true),
            _ => break,
        }
        rest = rest[word.len()..].trim_start();
    }
    if let Some(stripped) = rest.strip_suffix(" const") {
        return Some((stripped, Access::Read, constant));
    }
    Some((rest, access, constant))
}

fn describe(unit: &Unit, function: &Function, name: String, arguments: String) -> Result<KernelInfo, Diagnostic> {
    let error = |message: String| unit.diagnostic(function.start, message);
    let (file, line) = unit.flat.place(unit.tokens[function.start].start);
    let reachable = unit.reachable(&function.name);
    let mut info = KernelInfo {
        name,
        function: function.name.clone(),
        template_arguments: arguments,
        unit: unit.flat.unit_name().to_owned(),
        file: file.to_owned(),
        line,
        buffers: Vec::new(),
        threadgroup_arguments: Vec::new(),
        constants: Vec::new(),
        max_threads: function.max_threads.clone(),
        uses_threadgroup_memory: !unit.threadgroup_declarations(function).is_empty(),
        has_device_atomics: false,
    };
    for parameter in unit.parameters(function) {
        let place = format!("kernel {}: parameter {}", function.name, parameter.name);
        let index = || {
            parameter
                .argument
                .parse::<u32>()
                .map_err(|_| error(format!("{place} needs a plain number as its index")))
        };
        match (parameter.attribute.as_str(), pointee(&parameter.ty)) {
            ("buffer", Some((element, access, constant_space))) => {
                info.has_device_atomics |= element.contains("atomic");
                info.buffers.push(BufferInfo {
                    index: index()?,
                    name: parameter.name.clone(),
                    element: element.to_owned(),
                    access,
                    constant_space,
                    optional: parameter.optional,
                });
            }
            ("threadgroup", Some((element, ..))) => {
                info.uses_threadgroup_memory = true;
                info.threadgroup_arguments.push(ThreadgroupInfo {
                    index: index()?,
                    name: parameter.name.clone(),
                    element: element.to_owned(),
                });
            }
            ("", _) => return Err(error(format!("{place} needs an attribute, such as [[buffer(0)]]"))),
            ("buffer" | "threadgroup", None) => return Err(error(format!("{place} must be a pointer or a reference"))),
            (attribute, _) if built_in(&parameter, Target::Host).is_none() => {
                return Err(error(format!("{place}: attribute [[{attribute}]] is not known")));
            }
            _ => {}
        }
    }
    info.buffers.sort_by_key(|b| b.index);
    info.threadgroup_arguments.sort_by_key(|t| t.index);
    for pair in info.buffers.windows(2) {
        if pair[0].index == pair[1].index {
            return Err(error(format!(
                "kernel {}: buffer index {} is used twice",
                function.name, pair[0].index
            )));
        }
    }
    for constant in unit.constants.iter().filter(|c| reachable.contains(c.name.as_str())) {
        let ty = match constant.ty.as_str() {
            "bool" => ScalarType::Bool,
            "short" => ScalarType::Short,
            "ushort" => ScalarType::Ushort,
            "int" => ScalarType::Int,
            "uint" => ScalarType::Uint,
            "float" => ScalarType::Float,
            other => {
                return Err(error(format!(
                    "function constant {} has type {other}; use bool, short, ushort, int, uint or float",
                    constant.name
                )));
            }
        };
        let asked = |i: usize| unit.word(i) == "is_function_constant_defined" && unit.word(i + 2) == constant.name;
        info.constants.push(ConstantInfo {
            index: constant.index,
            name: constant.name.clone(),
            ty,
            checked_for_definition: (0..unit.tokens.len()).any(asked),
        });
    }
    info.constants.sort_by_key(|c| c.index);
    Ok(info)
}

/// The expression that fills in a built-in parameter.
fn built_in(parameter: &Parameter, target: Target) -> Option<String> {
    let ty = &parameter.ty;
    let vector = |name: &str| Some(format!("::msl::position<{ty}>(::msl::{name}())"));
    let scalar = |expression: &str| Some(format!("({ty})({expression})"));
    match parameter.attribute.as_str() {
        "thread_position_in_grid" => vector("thread_in_grid"),
        "thread_position_in_threadgroup" => vector("thread_in_threadgroup"),
        "threadgroup_position_in_grid" => vector("threadgroup_in_grid"),
        "threads_per_threadgroup" | "dispatch_threads_per_threadgroup" => vector("threadgroup_size"),
        "threadgroups_per_grid" => vector("grid_size"),
        "threads_per_grid" => vector("threads_in_grid"),
        "thread_index_in_threadgroup" => scalar("::msl::thread_index()"),
        "thread_index_in_simdgroup" => scalar("::msl::lane()"),
        "simdgroup_index_in_threadgroup" => scalar("::msl::thread_index() / 32"),
        "simdgroups_per_threadgroup" => scalar("::msl::simdgroups()"),
        "quadgroup_index_in_threadgroup" => scalar("::msl::thread_index() / 4"),
        "thread_index_in_quadgroup" => scalar("::msl::lane() % 4"),
        "threads_per_simdgroup" | "thread_execution_width" => scalar("32"),
        "threadgroup" if target == Target::Host => {
            Some(format!("({ty})::msl::threadgroup_argument({})", parameter.argument))
        }
        "threadgroup" => Some(format!("({ty})msl_dynamic_threadgroup_memory")),
        _ => None,
    }
}

/// The entry function of one kernel. It goes through a template wrapper, so that parameter types which mention template
/// parameters mean the same as in the kernel.
fn entry(unit: &Unit, function: &Function, kernel: &KernelInfo, target: Target) -> String {
    let call: Vec<String> = unit
        .parameters(function)
        .iter()
        .map(|parameter| {
            if parameter.attribute != "buffer" {
                return built_in(parameter, target).unwrap_or_default();
            }
            let source = match target {
                Target::Host => format!("b[{}]", parameter.argument),
                Target::Nvptx => format!("b{}", parameter.argument),
            };
            match parameter.ty.trim().strip_suffix('&') {
                Some(base) => format!("*({}*){source}", base.trim()),
                None => format!("({}){source}", parameter.ty),
            }
        })
        .collect();
    let (signature, inner, pass) = match target {
        Target::Host => ("void* const* b".to_owned(), "void* const* b".to_owned(), "b".to_owned()),
        Target::Nvptx => nvptx_arguments(kernel),
    };
    let (template, own, arguments) = match &function.template {
        Some(tokens) => {
            let names: Vec<&str> = unit
                .split_commas(tokens.clone())
                .into_iter()
                .map(|part| {
                    let end = part.clone().find(|&i| unit.word(i) == "=").unwrap_or(part.end);
                    unit.word(end - 1)
                })
                .collect();
            (
                format!("template <{}> ", unit.text(tokens.clone())),
                format!("<{}>", names.join(", ")),
                format!("<{}>", kernel.template_arguments),
            )
        }
        None => Default::default(),
    };
    let (name, called) = (&kernel.name, &function.name);
    let (attribute, prefix, begin) = match target {
        Target::Host => ("", "msl_kernel_", ""),
        Target::Nvptx if unit.reachable(&function.name).contains("wait_for_earlier_kernels") => {
            ("__attribute__((nvptx_kernel)) ", "", "::msl::kernel_starts(); ")
        }
        Target::Nvptx => (
            "__attribute__((nvptx_kernel)) ",
            "",
            "::msl::kernel_starts(); ::msl::kernel_waits(); ",
        ),
    };
    format!(
        "namespace msl_entry_{name} {{ {template}static MSL_ALWAYS_INLINE void run({inner}) {{ {called}{own}({}); }} }}\n\
         extern \"C\" MSL_ENTRY {attribute}void {prefix}{name}({signature}) {{ {begin}msl_entry_{name}::run{arguments}({pass}); }}\n",
        call.join(", ").replace('\n', " "),
    )
}

/// The parameters of a PTX kernel, those of the function that it calls, and what it passes: buffers as pointers, and what is a
/// reference to `constant` memory by value, so that no load from memory stands before the kernel's work.
fn nvptx_arguments(kernel: &KernelInfo) -> (String, String, String) {
    let (mut signature, mut inner, mut pass) = (Vec::new(), Vec::new(), Vec::new());
    for (
        place,
        BufferInfo {
            index,
            element,
            access,
            constant_space,
            ..
        },
    ) in kernel.buffers.iter().enumerate()
    {
        if *constant_space {
            signature.push(format!("const {element} b{index}"));
            inner.push(format!("constant char* b{index}"));
            pass.push(format!("MSL_PARAMETER({}, {place})", kernel.name));
            continue;
        }
        let read_only = if *access == Access::Read { "const " } else { "" };
        let pointer = format!("{read_only}device char* __restrict b{index}");
        signature.push(pointer.clone());
        inner.push(pointer);
        pass.push(format!("b{index}"));
    }
    (signature.join(", "), inner.join(", "), pass.join(", "))
}
