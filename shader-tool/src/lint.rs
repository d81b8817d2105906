//! What clang accepts, but Apple's compiler refuses or computes differently; and what the translation relies on.
//!
//! Needs no clang. [`crate::Library::build`] applies every rule to every `.metal` source and its headers:
//!
//! | refused | because |
//! |---|---|
//! | a pointer or reference parameter, variable or cast without an address space | Metal has no generic pointers; clang takes it for thread memory |
//! | `(float4)v` and functional casts through an alias of a vector type | clang reinterprets a vector's bits where Metal converts elements |
//! | `double`, `long double`, `long long`, 64-bit float literals | Metal has none |
//! | `static` variables in functions | Metal has none; here they would be shared by all threads |
//! | recursion | Metal has none |
//! | `new`, `delete`, `throw`, `try`, `virtual`, `goto`, `asm`, `typeid`, `dynamic_cast`, `thread_local`, `std::` | Metal has none |
//! | array parameters with an address space | Metal's headers take them, clang does not: write a pointer |
//! | threadgroup variables outside a kernel's outermost block | Metal wants them there; offsets are chained in order |
//! | a threadgroup array without `alignas(16)` that is cast to another type | Metal aligns it to its element only; clang here always aligns to 16 |
//! | `max_total_threads_per_threadgroup(n)` with n below 64 | Apple's compiler then drops or misorders barriers |
//! | kernels, instantiations or threadgroup variables made by macros | they are read before macros are expanded |

use crate::Diagnostic;
use crate::source::parse::{Function, Tokens, Unit};
use std::collections::{HashMap, HashSet};

const SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];

const FORBIDDEN: [(&str, &str); 14] = [
    ("double", "Metal has no double: write float"),
    ("goto", "Metal has no goto"),
    ("asm", "Metal has no inline assembly"),
    ("new", "Metal has no dynamic memory"),
    ("delete", "Metal has no dynamic memory"),
    ("throw", "Metal has no exceptions"),
    ("try", "Metal has no exceptions"),
    ("catch", "Metal has no exceptions"),
    ("virtual", "Metal has no virtual functions"),
    ("typeid", "Metal has no run-time types"),
    ("dynamic_cast", "Metal has no run-time types"),
    ("thread_local", "Metal has no thread_local: plain locals are per thread"),
    ("std", "Metal has no std: its library is in namespace metal"),
    ("printf", "Metal has no printf"),
];

/// Applies every rule.
pub(crate) fn check(unit: &Unit) -> Vec<Diagnostic> {
    let lint = Lint {
        unit,
        vectors: vector_aliases(unit),
        scalars: scalar_words(),
    };
    let mut found = Vec::new();
    lint.words(&mut found);
    lint.directives(&mut found);
    lint.casts(&mut found);
    lint.recursion(&mut found);
    for function in &unit.functions {
        lint.parameters(function, &mut found);
        lint.locals(function, &mut found);
        lint.threadgroup_variables(function, &mut found);
        lint.thread_limit(function, &mut found);
    }
    found
}

struct Lint<'a> {
    unit: &'a Unit,
    /// Names that mean a vector type: `float4` and its like, and aliases.
    vectors: HashSet<String>,
    scalars: HashSet<&'static str>,
}

fn scalar_words() -> HashSet<&'static str> {
    HashSet::from([
        "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "half", "bfloat",
        "size_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "unsigned",
        "void", "auto",
    ])
}

/// `float4`, `packed_half2`, ...: built-in vector type names.
fn is_vector(word: &str) -> bool {
    let base = word.strip_prefix("packed_").unwrap_or(word);
    let Some(size) = base.chars().last().filter(|c| ('2'..='4').contains(c)) else {
        return false;
    };
    let element = base.strip_suffix(size).unwrap_or_default();
    matches!(
        element,
        "bool"
            | "char"
            | "uchar"
            | "short"
            | "ushort"
            | "int"
            | "uint"
            | "long"
            | "ulong"
            | "float"
            | "half"
            | "bfloat"
    )
}

/// A built-in type's alignment in bytes.
fn alignment(ty: &str) -> Option<usize> {
    let packed = ty.starts_with("packed_");
    let base = ty.strip_prefix("packed_").unwrap_or(ty);
    let (element, count) = if is_vector(base) {
        base.split_at(base.len() - 1)
    } else {
        (base, "1")
    };
    let size = match element {
        "bool" | "char" | "uchar" | "int8_t" | "uint8_t" => 1,
        "short" | "ushort" | "half" | "bfloat" | "int16_t" | "uint16_t" => 2,
        "int" | "uint" | "float" | "int32_t" | "uint32_t" => 4,
        "long" | "ulong" | "size_t" | "int64_t" | "uint64_t" => 8,
        _ => return None,
    };
    match count {
        "1" => Some(size),
        _ if packed => Some(size),
        "2" => Some(size * 2),
        _ => Some(size * 4),
    }
}

/// Names declared by `using X = vec<...>;`, `using X = float4;` and the typedefs of the same.
fn vector_aliases(unit: &Unit) -> HashSet<String> {
    let mut aliases = HashSet::new();
    for i in 0..unit.tokens.len() {
        if unit.word(i) == "using" && unit.word(i + 2) == "=" {
            let target = (i + 3..unit.tokens.len()).find(|&j| !matches!(unit.word(j), "metal" | "::" | "typename"));
            if target.is_some_and(|j| is_vector(unit.word(j)) || unit.word(j) == "vec" && unit.word(j + 1) == "<") {
                aliases.insert(unit.word(i + 1).to_owned());
            }
        } else if unit.word(i) == "typedef" && is_vector(unit.word(i + 1)) {
            aliases.insert(unit.word(i + 2).to_owned());
        }
    }
    aliases
}

impl Lint<'_> {
    fn is_type_word(&self, i: usize) -> bool {
        let word = self.unit.word(i);
        self.scalars.contains(word) || is_vector(word) || self.vectors.contains(word)
    }

    fn words(&self, found: &mut Vec<Diagnostic>) {
        let unit = self.unit;
        for i in 0..unit.tokens.len() {
            let word = unit.word(i);
            let forbidden = FORBIDDEN
                .iter()
                .find(|(name, _)| *name == word && unit.is_identifier(i));
            if let Some((_, why)) = forbidden.filter(|_| word != "std" || unit.word(i + 1) == "::") {
                found.push(unit.diagnostic(i, *why));
            }
            if word == "long" && unit.word(i + 1) == "long" {
                found.push(unit.diagnostic(i, "Metal has no long long: its long has 64 bits"));
            }
            // A value made through an alias: `V(x)`, where V is `vec<T, 4>`.
            if self.vectors.contains(word) && unit.word(i + 1) == "(" && unit.word(i - 1) != "using" {
                let message = format!(
                    "{word}(...) of a vector reinterprets its bits under clang, where Metal converts: write vec<T, N>(...) out"
                );
                found.push(unit.diagnostic(i, message));
            }
        }
    }

    /// Preprocessor lines.
    fn directives(&self, found: &mut Vec<Diagnostic>) {
        for range in &self.unit.directives {
            let text = &self.unit.flat.text[range.clone()];
            let Some(definition) = text.trim_start_matches('#').trim_start().strip_prefix("define") else {
                continue;
            };
            let has = |word: &str| {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                definition.match_indices(word).any(|(at, _)| {
                    !definition[..at].ends_with(is_part) && !definition[at + word.len()..].starts_with(is_part)
                })
            };
            if has("host_name") || has("kernel") || has("function_constant") {
                let message = "kernels, instantiations and function constants are read before macros are expanded: write them out";
                found.push(self.unit.flat.diagnostic(range.start, message));
            }
            if has("double") {
                found.push(
                    self.unit
                        .flat
                        .diagnostic(range.start, "Metal has no double: write float"),
                );
            }
        }
    }

    /// `(float4)v` and `(float*)p`.
    fn casts(&self, found: &mut Vec<Diagnostic>) {
        let unit = self.unit;
        for i in 1..unit.tokens.len() {
            if unit.word(i) != "(" || !self.is_type_word(i + 1) && unit.word(i + 1) != "const" {
                continue;
            }
            let close = unit.close(i);
            // Behind a name it is a call, a declaration or a condition, not a cast.
            let is_call = unit.is_identifier(i - 1) && !matches!(unit.word(i - 1), "return" | "case")
                || matches!(unit.word(i - 1), ">" | ")" | "]");
            let followed = unit.is_identifier(close + 1)
                || unit.word(close + 1) == "("
                || unit.word(close + 1).starts_with(|c: char| c.is_ascii_digit());
            if is_call || !followed {
                continue;
            }
            let name = unit.word(i + 1);
            if close == i + 2 && (is_vector(name) || self.vectors.contains(name)) {
                let message = format!(
                    "({name})v reinterprets a vector's bits under clang, where Metal converts: write {name}(v)"
                );
                found.push(unit.diagnostic(i, message));
            } else if unit.word(close - 1) == "*" {
                found.push(unit.diagnostic(
                    i,
                    format!("the cast {} names no address space", unit.text(i..close + 1)),
                ));
            }
        }
        for i in 0..unit.tokens.len() {
            if matches!(unit.word(i), "static_cast" | "reinterpret_cast" | "const_cast") && unit.word(i + 1) == "<" {
                let close = unit.close(i + 1);
                self.declarator(i + 2..close, "the cast's type", found);
            }
        }
    }

    /// Complains where `range`, a type or declaration, has a `*` or `&` but no address space.
    fn declarator(&self, range: Tokens, what: &str, found: &mut Vec<Diagnostic>) {
        let unit = self.unit;
        let mut at = range.start;
        let mut indirect = None;
        while at < range.end {
            match unit.word(at) {
                "=" => break,
                "<" | "(" | "[[" => at = unit.close(at),
                "*" | "&" => indirect = Some(at),
                word if SPACES.contains(&word) => return,
                // `decltype(x)&` and the like carry the address space of what they name.
                "decltype" => return,
                _ => {}
            }
            at += 1;
        }
        if let Some(i) = indirect {
            let text = unit.text(range);
            found.push(unit.diagnostic(
                i,
                format!("{what} `{text}` names no address space (device, constant, threadgroup, thread)"),
            ));
        }
    }

    fn parameters(&self, function: &Function, found: &mut Vec<Diagnostic>) {
        let unit = self.unit;
        for parameter in unit.split_commas(function.parameters.clone()) {
            self.declarator(parameter.clone(), "the parameter", found);
            let has_space = parameter.clone().any(|i| SPACES.contains(&unit.word(i)));
            let array = parameter
                .clone()
                .find(|&i| unit.word(i) == "[" && unit.is_identifier(i - 1));
            if let Some(i) = array.filter(|_| has_space && !function.is_kernel) {
                found.push(unit.diagnostic(
                    i,
                    "array parameters with an address space are not portable: write a pointer",
                ));
            }
        }
    }

    fn locals(&self, function: &Function, found: &mut Vec<Diagnostic>) {
        let unit = self.unit;
        let mut at = function.body.start;
        while at < function.body.end {
            let begins = matches!(unit.word(at - 1), "{" | "}" | ";" | "(" | ")");
            if unit.word(at) == "static" {
                found.push(unit.diagnostic(
                    at,
                    "Metal has no static variables in functions (`constexpr` alone will do)",
                ));
            }
            let first = if unit.word(at) == "const" { at + 1 } else { at };
            if begins && self.is_type_word(first) && matches!(unit.word(first + 1), "*" | "&") {
                // `float* p = ...`, `auto& x : xs`; not the cast, which `casts` looks at.
                let name = (first + 1..function.body.end).find(|&i| !matches!(unit.word(i), "*" | "&" | "const"));
                if name.is_some_and(|i| unit.is_identifier(i) && matches!(unit.word(i + 1), "=" | ";" | ":" | ",")) {
                    self.declarator(at..name.unwrap_or(at) + 1, "the variable", found);
                }
            }
            at += 1;
        }
    }

    fn threadgroup_variables(&self, function: &Function, found: &mut Vec<Diagnostic>) {
        let unit = self.unit;
        for declaration in unit.threadgroup_declarations(function) {
            let at = declaration.tokens.start;
            if !function.is_kernel || !declaration.outermost {
                let message =
                    "threadgroup variables belong into the outermost block of a kernel; pass pointers to functions";
                found.push(unit.diagnostic(at, message));
            }
            for variable in declaration
                .variables
                .iter()
                .filter(|v| !declaration.aligned && !v.dimensions.is_empty())
            {
                let own = alignment(variable.ty.trim());
                let cast = function.body.clone().find(|&i| {
                    // `(threadgroup T*)name` or `(threadgroup T*)(name + ...)`
                    let close = unit.close(i);
                    unit.word(i) == "("
                        && (unit.word(i + 1) == "threadgroup" || unit.word(i + 1) == "const")
                        && unit.word(close - 1) == "*"
                        // To a type of no stricter alignment it is harmless.
                        && alignment(unit.word(close - 2)).zip(own).is_none_or(|(cast, own)| cast > own)
                        && (unit.word(close + 1) == variable.name
                            || matches!(unit.word(close + 1), "(" | "&") && unit.word(close + 2) == variable.name)
                });
                if let Some(i) = cast {
                    let message = format!(
                        "threadgroup array {} is cast here, but Metal aligns it to its element only: declare it alignas(16)",
                        variable.name
                    );
                    found.push(unit.diagnostic(i, message));
                }
            }
        }
    }

    fn thread_limit(&self, function: &Function, found: &mut Vec<Diagnostic>) {
        let limit = function.max_threads.as_ref().and_then(|n| n.parse::<u32>().ok());
        if let Some(limit) = limit.filter(|&limit| !(64..=1024).contains(&limit)) {
            let message = format!(
                "max_total_threads_per_threadgroup({limit}): below 64 Apple's compiler drops or misorders barriers, and 1024 is the most"
            );
            found.push(self.unit.diagnostic(function.start, message));
        }
    }

    /// A cycle of calls among functions that are neither templates (which recurse at compile time) nor overloaded.
    fn recursion(&self, found: &mut Vec<Diagnostic>) {
        let unit = self.unit;
        let mut by_name: HashMap<&str, Vec<&Function>> = HashMap::new();
        for function in &unit.functions {
            by_name.entry(&function.name).or_default().push(function);
        }
        let plain: HashMap<&str, &Function> = by_name
            .iter()
            .filter(|(_, all)| all.len() == 1 && all[0].template.is_none())
            .map(|(name, all)| (*name, all[0]))
            .collect();
        let calls = |function: &Function| -> Vec<&str> {
            function
                .body
                .clone()
                .filter(|&i| unit.word(i + 1) == "(" && unit.word(i - 1) != "." && plain.contains_key(unit.word(i)))
                .map(|i| unit.word(i))
                .collect()
        };
        for (&name, &function) in &plain {
            let mut reached = HashSet::new();
            let mut queue = calls(function);
            while let Some(next) = queue.pop() {
                if reached.insert(next) {
                    queue.extend(calls(plain[next]));
                }
            }
            if reached.contains(name) {
                found.push(unit.diagnostic(function.start, format!("{name} calls itself: Metal has no recursion")));
            }
        }
    }
}
