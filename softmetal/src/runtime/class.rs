//! Selectors and classes.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError, RwLock};

use super::object::{self, Object};

/// A function that implements a method; it is called with the signature that its selector implies.
pub(super) type Imp = *const c_void;

/// An interned method name: two selectors are equal when their addresses are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(super) struct Sel(*const c_char);

// SAFETY: a selector points at a leaked, never written string.
unsafe impl Send for Sel {}
// SAFETY: as above.
unsafe impl Sync for Sel {}

impl Sel {
    pub(super) fn new(name: &CStr) -> Self {
        static NAMES: LazyLock<Mutex<HashMap<CString, Sel>>> = LazyLock::new(Default::default);
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        *names
            .entry(name.to_owned())
            .or_insert_with(|| Sel(CString::into_raw(name.to_owned())))
    }

    pub(super) fn name(&self) -> &'static CStr {
        // SAFETY: made by `new` from a leaked string.
        unsafe { CStr::from_ptr(self.0) }
    }
}

/// An instance variable of a class; objc2 puts a defined class's Rust fields in one of them.
#[repr(C)]
pub(super) struct Ivar {
    offset: isize,
}

/// A class or a metaclass. It is an object too, so `isa` comes first.
#[repr(C)]
pub(super) struct Class {
    isa: &'static Class,
    parent: Option<&'static Class>,
    name: &'static CStr,
    is_meta: bool,
    /// Its methods are there.
    registered: AtomicBool,
    /// Bytes of an instance, its `isa` included.
    size: AtomicUsize,
    methods: RwLock<BTreeMap<Sel, usize>>,
    ivars: RwLock<BTreeMap<&'static CStr, &'static Ivar>>,
}

impl Class {
    const fn constant(
        isa: &'static Class,
        parent: Option<&'static Class>,
        name: &'static CStr,
        is_meta: bool,
        registered: bool,
    ) -> Self {
        Class {
            isa,
            parent,
            name,
            is_meta,
            registered: AtomicBool::new(registered),
            size: AtomicUsize::new(if is_meta { 0 } else { size_of::<usize>() }),
            methods: RwLock::new(BTreeMap::new()),
            ivars: RwLock::new(BTreeMap::new()),
        }
    }
}

/// The root class; objc2 links to this symbol.
#[unsafe(no_mangle)]
pub(super) static _OBJC_CLASS_NSObject: Class = Class::constant(&ROOT_META, None, c"NSObject", false, true);

static ROOT_META: Class = Class::constant(&ROOT_META, Some(&_OBJC_CLASS_NSObject), c"NSObject", true, true);

/// The classes that objc2-foundation and objc2-metal link to by a symbol. They get their methods from this crate's classes of
/// the same names, when they are first sent a message.
macro_rules! linked_classes {
    ($($name:literal)*) => {
        static LINKED: &[&Class] = &[$({
            static META: Class = Class::constant(&ROOT_META, Some(&ROOT_META), NAME, true, true);
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a class's name has no NUL"),
            };
            #[unsafe(export_name = concat!("_OBJC_CLASS_", $name))]
            static CLASS: Class = Class::constant(&META, Some(&_OBJC_CLASS_NSObject), NAME, false, false);
            &CLASS
        },)*];
    };
}

linked_classes! {
    "NSArray"
    "NSError"
    "NSProcessInfo"
    "NSString"
    "NSURL"
    "MTLBinaryArchiveDescriptor"
    "MTLCompileOptions"
    "MTLComputePipelineDescriptor"
    "MTLFunctionConstantValues"
    "MTLResidencySetDescriptor"
}

static CLASSES: Mutex<BTreeMap<&'static CStr, &'static Class>> = Mutex::new(BTreeMap::new());

impl Class {
    fn leak(isa: &'static Class, parent: &'static Class, name: &'static CStr, is_meta: bool) -> &'static Self {
        Box::leak(Box::new(Class {
            isa,
            parent: Some(parent),
            name,
            is_meta,
            registered: AtomicBool::new(true),
            size: AtomicUsize::new(parent.size()),
            methods: RwLock::default(),
            ivars: RwLock::default(),
        }))
    }

    pub(super) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    pub(super) fn is_meta(&self) -> bool {
        self.is_meta
    }

    pub(super) fn name(&self) -> &'static CStr {
        self.name
    }

    /// Whether this class is `other` or inherits from it.
    pub(super) fn inherits(&self, other: &Class) -> bool {
        std::ptr::eq(self, other) || self.parent.is_some_and(|parent| parent.inherits(other))
    }

    /// Gives a linked class its methods, if it has none yet.
    pub(super) fn ensure_registered(&self) {
        if !self.registered.load(Ordering::Acquire) {
            crate::register_class(self.name);
        }
    }

    /// The implementation of `sel`, of this class or the nearest ancestor that has one.
    pub(super) fn find(&self, sel: Sel) -> Option<Imp> {
        let mut next = Some(self);
        while let Some(class) = next {
            let own = class
                .methods
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .get(&sel)
                .copied();
            let found = own.map(|imp| imp as Imp).or_else(|| {
                if std::ptr::eq(class, &ROOT_META) {
                    object::root_class_method(sel)
                } else if std::ptr::eq(class, &_OBJC_CLASS_NSObject) {
                    object::root_method(sel)
                } else {
                    None
                }
            });
            if found.is_some() {
                return found;
            }
            next = class.parent;
        }
        None
    }

    /// [`Self::find`], or a panic that names the missing method.
    pub(super) fn require(&self, sel: Sel) -> Imp {
        self.find(sel).unwrap_or_else(|| {
            let sign = if self.is_meta { '+' } else { '-' };
            panic!(
                "{sign}[{} {}]: the software Metal has no such method",
                self.name.to_string_lossy(),
                sel.name().to_string_lossy()
            )
        })
    }
}

/// # Safety
/// `name` is a valid C string.
unsafe fn leaked(name: *const c_char) -> &'static CStr {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    Box::leak(name.to_owned().into_boxed_c_str())
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sel_registerName(name: *const c_char) -> Sel {
    // SAFETY: objc2 passes valid C strings.
    Sel::new(unsafe { CStr::from_ptr(name) })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_getName(sel: Sel) -> *const c_char {
    sel.0
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_isEqual(a: Sel, b: Sel) -> bool {
    a == b
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn objc_getClass(name: *const c_char) -> Option<&'static Class> {
    // SAFETY: objc2 passes valid C strings.
    let name = unsafe { CStr::from_ptr(name) };
    if name == _OBJC_CLASS_NSObject.name {
        return Some(&_OBJC_CLASS_NSObject);
    }
    CLASSES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(name)
        .copied()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn object_getClass(object: &Object) -> &'static Class {
    object.class()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_isMetaClass(class: &'static Class) -> bool {
    class.is_meta
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getName(class: &'static Class) -> *const c_char {
    class.name.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn objc_allocateClassPair(
    parent: &'static Class,
    name: *const c_char,
    _extra: usize,
) -> Option<&'static Class> {
    // SAFETY: objc2 passes valid C strings.
    let name = unsafe { leaked(name) };
    if CLASSES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .contains_key(name)
    {
        return None;
    }
    if let Some(linked) = LINKED.iter().find(|class| class.name == name) {
        return Some(linked);
    }
    let meta = Class::leak(&ROOT_META, parent.isa, name, true);
    Some(Class::leak(meta, parent, name, false))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_registerClassPair(class: &'static Class) {
    CLASSES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(class.name, class);
    class.registered.store(true, Ordering::Release);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_disposeClassPair(_class: &'static Class) {}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_addMethod(class: &'static Class, sel: Sel, imp: Imp, _types: *const c_char) -> bool {
    class
        .methods
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(sel, imp as usize)
        .is_none()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn class_addIvar(
    class: &'static Class,
    name: *const c_char,
    size: usize,
    align_log2: u8,
    _types: *const c_char,
) -> bool {
    let offset = class.size().next_multiple_of(1 << align_log2);
    class.size.store(offset + size, Ordering::Relaxed);
    let ivar = Box::leak(Box::new(Ivar {
        offset: offset as isize,
    }));
    // SAFETY: objc2 passes valid C strings.
    let name = unsafe { leaked(name) };
    class
        .ivars
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(name, ivar)
        .is_none()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn class_getInstanceVariable(
    class: &'static Class,
    name: *const c_char,
) -> Option<&'static Ivar> {
    // SAFETY: objc2 passes valid C strings.
    let name = unsafe { CStr::from_ptr(name) };
    let mut next = Some(class);
    while let Some(class) = next {
        if let Some(ivar) = class.ivars.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Some(ivar);
        }
        next = class.parent;
    }
    None
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ivar_getOffset(ivar: &Ivar) -> isize {
    ivar.offset
}

/// Protocols carry no information here: objc2's own Rust traits check the types.
#[unsafe(no_mangle)]
extern "C-unwind" fn objc_getProtocol(_name: *const c_char) -> *const c_void {
    std::ptr::null()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_addProtocol(_class: &'static Class, _protocol: *const c_void) -> bool {
    true
}
