//! Objects: messages, reference counts and autorelease pools.

use std::alloc::{Layout, alloc_zeroed, dealloc as free, handle_alloc_error};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use super::class::{Class, Imp, Sel};
use crate::finding::FindingKind;

/// Any object: what follows depends on its class. A reference count lies [`HEADER`] bytes before it.
#[repr(C)]
pub(super) struct Object {
    isa: &'static Class,
}

/// Bytes before an object: its reference count, padded so that the object keeps an alignment of 16.
const HEADER: usize = 16;

impl Object {
    pub(super) fn class(&self) -> &'static Class {
        self.isa
    }

    /// The implementation of `sel`, or a panic that names it.
    fn require(&self, sel: Sel) -> Imp {
        if self.isa.is_meta() {
            // SAFETY: what a metaclass is the class of is a class.
            unsafe { &*(&raw const *self).cast::<Class>() }.ensure_registered();
        }
        self.isa.require(sel)
    }

    /// The reference count; `None` for a class, which is never freed.
    fn count(&self) -> Option<&AtomicUsize> {
        if self.isa.is_meta() {
            return None;
        }
        // SAFETY: every object that is no class was made by `allocate`, which puts the count there.
        Some(unsafe { &*(&raw const *self).byte_sub(HEADER).cast() })
    }
}

fn layout(class: &Class) -> Layout {
    Layout::from_size_align(HEADER + class.size(), 16).expect("an object's size is far below isize::MAX")
}

fn allocate(class: &'static Class) -> *mut Object {
    let layout = layout(class);
    // SAFETY: the layout has at least HEADER bytes; both writes lie in the new allocation and are aligned.
    unsafe {
        let base = alloc_zeroed(layout);
        if base.is_null() {
            handle_alloc_error(layout);
        }
        base.cast::<AtomicUsize>().write(AtomicUsize::new(1));
        let object = base.add(HEADER).cast::<Object>();
        object.write(Object { isa: class });
        object
    }
}

type ObjectPointer = *mut Object;

extern "C-unwind" fn class_alloc(class: &'static Class, _sel: Sel) -> ObjectPointer {
    allocate(class)
}

extern "C-unwind" fn class_new(class: &'static Class, _sel: Sel) -> ObjectPointer {
    let object = allocate(class);
    let sel = Sel::new(c"init");
    // SAFETY: `init` takes no arguments and returns an object.
    let init: extern "C-unwind" fn(ObjectPointer, Sel) -> ObjectPointer =
        unsafe { std::mem::transmute(class.require(sel)) };
    init(object, sel)
}

extern "C-unwind" fn itself(object: ObjectPointer, _sel: Sel) -> ObjectPointer {
    object
}

extern "C-unwind" fn class_of(object: &Object, _sel: Sel) -> &'static Class {
    object.class()
}

extern "C-unwind" fn retain(object: ObjectPointer, _sel: Sel) -> ObjectPointer {
    objc_retain(object)
}

extern "C-unwind" fn release(object: ObjectPointer, _sel: Sel) {
    objc_release(object);
}

extern "C-unwind" fn autorelease(object: ObjectPointer, _sel: Sel) -> ObjectPointer {
    objc_autorelease(object)
}

extern "C-unwind" fn dealloc(object: ObjectPointer, _sel: Sel) {
    // SAFETY: called once, by the last `objc_release`, on an object made by `allocate` with the same layout.
    unsafe { free(object.cast::<u8>().sub(HEADER), layout((*object).class())) }
}

extern "C-unwind" fn is_equal(object: ObjectPointer, _sel: Sel, other: ObjectPointer) -> bool {
    object == other
}

extern "C-unwind" fn hash(object: ObjectPointer, _sel: Sel) -> usize {
    object as usize
}

extern "C-unwind" fn is_kind_of(object: &Object, _sel: Sel, class: &'static Class) -> bool {
    object.class().inherits(class)
}

extern "C-unwind" fn responds_to(object: &Object, _sel: Sel, sel: Sel) -> bool {
    object.class().find(sel).is_some()
}

/// A method of `NSObject`'s instances.
pub(super) fn root_method(sel: Sel) -> Option<Imp> {
    static METHODS: LazyLock<BTreeMap<Sel, usize>> = LazyLock::new(|| {
        [
            (c"init", itself as *const () as usize),
            (c"self", itself as *const () as usize),
            (c"class", class_of as *const () as usize),
            (c"retain", retain as *const () as usize),
            (c"release", release as *const () as usize),
            (c"autorelease", autorelease as *const () as usize),
            (c"dealloc", dealloc as *const () as usize),
            (c"isEqual:", is_equal as *const () as usize),
            (c"hash", hash as *const () as usize),
            (c"isKindOfClass:", is_kind_of as *const () as usize),
            (c"respondsToSelector:", responds_to as *const () as usize),
        ]
        .map(|(name, imp)| (Sel::new(name), imp))
        .into()
    });
    METHODS.get(&sel).map(|&imp| imp as Imp)
}

/// A method of the class `NSObject`.
pub(super) fn root_class_method(sel: Sel) -> Option<Imp> {
    static METHODS: LazyLock<BTreeMap<Sel, usize>> = LazyLock::new(|| {
        [
            (c"alloc", class_alloc as *const () as usize),
            (c"new", class_new as *const () as usize),
            (c"class", itself as *const () as usize),
        ]
        .map(|(name, imp)| (Sel::new(name), imp))
        .into()
    });
    METHODS.get(&sel).map(|&imp| imp as Imp)
}

/// A message to nil does nothing and returns zero.
extern "C-unwind" fn nil_method() -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup(receiver: Option<&Object>, sel: Sel) -> Imp {
    match receiver {
        Some(object) => object.require(sel),
        None => nil_method as *const () as Imp,
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup_stret(receiver: Option<&Object>, sel: Sel) -> Imp {
    match receiver {
        Some(object) => object.require(sel),
        None => panic!("-{} returns a struct and was sent to nil", sel.name().to_string_lossy()),
    }
}

/// A message to the implementation that `class` inherits or has.
#[repr(C)]
struct Super {
    receiver: *mut c_void,
    class: &'static Class,
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup_super(target: &Super, sel: Sel) -> Imp {
    target.class.require(sel)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup_super_stret(target: &Super, sel: Sel) -> Imp {
    target.class.require(sel)
}

/// The object behind a pointer that Objective-C code holds.
fn object<'a>(pointer: ObjectPointer) -> Option<&'a Object> {
    // SAFETY: a caller that retains, releases or autoreleases an object owns a reference to it.
    unsafe { pointer.as_ref() }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_alloc(class: &'static Class) -> ObjectPointer {
    allocate(class)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retain(pointer: ObjectPointer) -> ObjectPointer {
    if let Some(count) = object(pointer).and_then(Object::count) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    pointer
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_release(pointer: ObjectPointer) {
    let Some(object) = object(pointer) else { return };
    let Some(count) = object.count() else { return };
    if count.fetch_sub(1, Ordering::Release) == 1 {
        fence(Ordering::Acquire);
        let sel = Sel::new(c"dealloc");
        // SAFETY: `dealloc` takes no arguments and returns nothing.
        let dealloc: extern "C-unwind" fn(ObjectPointer, Sel) =
            unsafe { std::mem::transmute(object.class().require(sel)) };
        dealloc(pointer, sel);
    }
}

thread_local! {
    /// Autoreleased objects of this thread, and where each open pool starts among them.
    static POOLS: RefCell<(Vec<ObjectPointer>, Vec<usize>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    POOLS.with(|pools| {
        let (objects, starts) = &mut *pools.borrow_mut();
        starts.push(objects.len());
        starts.len() as *mut c_void
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPop(pool: *mut c_void) {
    loop {
        // An object's `dealloc` may autorelease others, so the borrow ends before each release.
        let next = POOLS.with(|pools| {
            let (objects, starts) = &mut *pools.borrow_mut();
            let index = (pool as usize).checked_sub(1)?;
            let start = *starts.get(index)?;
            if objects.len() > start {
                return objects.pop();
            }
            starts.truncate(index);
            None
        });
        match next {
            Some(object) => objc_release(object),
            None => return,
        }
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autorelease(pointer: ObjectPointer) -> ObjectPointer {
    let Some(object) = object(pointer) else { return pointer };
    let leaked = POOLS.with(|pools| {
        let (objects, starts) = &mut *pools.borrow_mut();
        objects.push(pointer);
        starts.is_empty()
    });
    if leaked {
        crate::report(FindingKind::NoAutoreleasePool, || {
            format!(
                "a {} was autoreleased on a thread without a pool and leaks",
                object.class().name().to_string_lossy()
            )
        });
    }
    pointer
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleaseReturnValue(object: ObjectPointer) -> ObjectPointer {
    objc_autorelease(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutoreleasedReturnValue(object: ObjectPointer) -> ObjectPointer {
    objc_retain(object)
}
