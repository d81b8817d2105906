//! The Objective-C runtime that objc2 needs, and no more: classes made at run time, message lookup, reference counts
//! and autorelease pools.
//!
//! objc2 is built with its GNUstep calling convention (`objc_msg_lookup` returns a function to call), because that needs
//! no assembly. There is no libobjc, no Foundation and no exception: a message that no class answers panics with its name.
//!
//! The exported functions take `&'static Class` and `Option<&Object>` where C has pointers: the caller, objc2, promises
//! valid pointers, and the two have the same representation.

mod class;
mod object;
