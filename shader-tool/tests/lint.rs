//! Each rule of the lint refuses its mistake, names the line, and leaves the right way to write it alone.

use shader_tool::{Library, Options, ShaderError, SourceFile};

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\n";

fn lint(text: &str) -> Vec<(u32, String)> {
    let source = SourceFile::new("k.metal", format!("{HEAD}{text}"));
    match Library::build(&[source], Options::default()) {
        Ok(_) => Vec::new(),
        Err(ShaderError::Source(found)) => found.into_iter().map(|d| (d.line - 2, d.message)).collect(),
        Err(other) => panic!("{other}"),
    }
}

#[track_caller]
fn refused(text: &str, line: u32, part: &str) {
    let found = lint(text);
    let hit = found.iter().any(|(at, message)| *at == line && message.contains(part));
    assert!(hit, "expected {part:?} in line {line} of {text:?}, found {found:?}");
}

#[track_caller]
fn accepted(text: &str) {
    assert_eq!(lint(text), [], "{text}");
}

#[test]
fn pointers_and_references_need_an_address_space() {
    refused("float f(const float* p) { return *p; }", 1, "names no address space");
    refused("void f(float& x) {}", 1, "names no address space");
    refused(
        "void f() {\n  float x = 1.0f;\n  float* p = &x;\n}",
        3,
        "names no address space",
    );
    refused(
        "void f() {\n  float x;\n  int i = *(int*)(&x);\n}",
        3,
        "names no address space",
    );
    refused(
        "void f(device float* p) {\n  auto q = reinterpret_cast<uint*>(p);\n}",
        2,
        "names no address space",
    );
    accepted("float f(device const float* p, thread float& x, float a, float b) { return *p * x + (a)*b; }");
    accepted("template <typename P> void f(P p) { float y = 2.0f * float(p[0]) * (float)p[1]; }");
    accepted("void f(device const uint* p) { uint2 q = *(device const uint2*)(p + 2); }");
}

#[test]
fn vector_casts_would_reinterpret() {
    refused("float4 f(uint4 u) {\n  return (float4)u;\n}", 2, "float4(v)");
    refused(
        "template <typename T> void f(vec<T, 4> v) {\n  using V = vec<float, 4>;\n  V w = V(v);\n}",
        3,
        "vec<T, N>",
    );
    accepted("template <typename T> float4 f(vec<T, 4> v) { return float4(v) + vec<float, 4>(v); }");
    accepted("float f(float4 v) { return dot(float4(1.0f), (float)2 * v); }");
}

#[test]
fn words_that_metal_does_not_have() {
    refused("double f() { return 1.0; }", 1, "no double");
    refused("#define T double", 1, "no double");
    refused("long long f() { return 1; }", 1, "no long long");
    refused("int f() {\n  static int n = 0;\n  return n++;\n}", 2, "no static");
    refused("int f() { goto end; end: return 1; }", 1, "no goto");
    refused("int f() { return std::min(1, 2); }", 1, "no std");
    accepted("static int f() { constexpr int n = 3; return n; }");
}

#[test]
fn recursion_is_refused_and_overloads_are_not() {
    refused("int f(int n) { return n < 2 ? n : f(n - 1); }", 1, "calls itself");
    refused(
        "int g(int n);\nint f(int n) { return g(n); }\nint g(int n) { return f(n); }",
        3,
        "calls itself",
    );
    accepted("int f(int n) { return n; }\nint f(int2 n) { return f(n.x) + f(n.y); }");
    accepted("template <int N> int f() { if constexpr (N == 0) { return 0; } else { return f<N - 1>(); } }");
}

#[test]
fn threadgroup_memory_has_its_place_and_alignment() {
    let kernel = |body: &str| format!("kernel void k(device float* o [[buffer(0)]]) {{\n{body}\n}}");
    refused(
        &kernel("  if (o[0] > 0.0f) {\n    threadgroup float a[4];\n    a[0] = 1.0f;\n  }"),
        3,
        "outermost block",
    );
    refused(
        "void f() {\n  threadgroup float a[4];\n  a[0] = 1.0f;\n}",
        2,
        "outermost block",
    );
    let cast = "  *(threadgroup float4*)(a + 4) = float4(0.0f);";
    refused(&kernel(&format!("  threadgroup float a[8];\n{cast}")), 3, "alignas(16)");
    accepted(&kernel(&format!("  alignas(16) threadgroup float a[8];\n{cast}")));
    accepted(&kernel(
        "  threadgroup float a[8];\n  threadgroup float* p = a;\n  p[0] = 1.0f;",
    ));
    refused("void f(constant const int s[2]) {}", 1, "write a pointer");
}

#[test]
fn kernels_must_be_written_out() {
    refused(
        "#define K(n) template [[host_name(n)]] [[kernel]] decltype(k<1>) k<1>;",
        1,
        "before macros are expanded",
    );
    refused(
        "[[kernel, max_total_threads_per_threadgroup(32)]] void k(device float* o [[buffer(0)]]) {}",
        1,
        "below 64",
    );
    refused(
        "template <int N> [[kernel]] void k(device float* o [[buffer(0)]]) {}\ntemplate void k<1>(device float*);",
        2,
        "host_name",
    );
    refused("kernel void k(device float* o) {}", 1, "needs an attribute");
    refused(
        "kernel void k(device float* a [[buffer(1)]], device float* b [[buffer(1)]]) {}",
        1,
        "used twice",
    );
    refused(
        "kernel void k(device float* o [[buffer(0)]], uint i [[thread_in_moon]]) {}",
        1,
        "not known",
    );
    refused("#include \"missing.h\"", 1, "no source named");
    refused("void f() { (", 1, "never closed");
    accepted("[[kernel, max_total_threads_per_threadgroup(64)]] void k(device float* o [[buffer(0)]]) {}");
}

#[test]
fn every_line_keeps_its_place() {
    let header = SourceFile::new("include/h.h", "#pragma once\nstruct P {\n  double x;\n};\n");
    let unit = SourceFile::new(
        "a/k.metal",
        "#include \"include/h.h\"\n\n#include \"h.h\"\nvoid f() { throw 1; }\n",
    );
    let error = Library::build(&[header, unit], Options::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a/k.metal:4: Metal has no exceptions\ninclude/h.h:3: Metal has no double: write float"
    );
}

#[test]
fn the_manifest_names_what_kernels_take() {
    let text = "constant bool kA [[function_constant(3)]];\nconstant uint kB [[function_constant(1)]];\n\
                constant uint kC = kB * 2;\nuint helper() { return kC; }\n\
                template <typename T> [[kernel, max_total_threads_per_threadgroup(128)]] void k(\n\
                device const T* x [[buffer(2)]], device atomic_uint* n [[buffer(0), function_constant(kA)]],\n\
                constant uint& p [[buffer(1)]], threadgroup float* t [[threadgroup(0)]],\n\
                uint2 i [[thread_position_in_grid]]) { x[helper()]; }\n\
                template [[host_name(\"k_f32\")]] [[kernel]] decltype(k<float>) k<float>;\n";
    let library = Library::build(&[SourceFile::new("k.metal", text)], Options::default()).unwrap();
    let json = serde_json::to_value(library.manifest()).unwrap();
    let kernel = &json["kernels"][0];
    assert_eq!(
        (kernel["name"].as_str(), kernel["line"].as_u64()),
        (Some("k_f32"), Some(5))
    );
    let buffers: Vec<String> = kernel["buffers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| {
            format!(
                "{} {} {} {} {}",
                b["index"], b["name"], b["element"], b["access"], b["optional"]
            )
        })
        .collect();
    assert_eq!(
        buffers,
        [
            "0 \"n\" \"atomic_uint\" \"readwrite\" true",
            "1 \"p\" \"uint\" \"read\" false",
            "2 \"x\" \"T\" \"read\" false"
        ]
    );
    let constants = kernel["constants"].as_array().unwrap();
    let constants: Vec<String> = constants
        .iter()
        .map(|c| format!("{} {} {}", c["index"], c["name"], c["ty"]))
        .collect();
    assert_eq!(
        constants,
        ["1 \"kB\" \"uint\"", "3 \"kA\" \"bool\""],
        "one by way of a function, one by an attribute"
    );
    assert_eq!(kernel["max_threads"], "128");
    assert_eq!(kernel["has_device_atomics"], true);
    assert_eq!(kernel["threadgroup_arguments"][0]["name"], "t");
}
