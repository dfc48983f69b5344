;; A look-up in a hash table: what the built-in GET does, as a module. `remora bench wasm` holds one against the other.
;;
;; Parameters (28 bytes): address of the entries u64, key u64, index of the first entry u32, key of the entries' region
;; u32, key of the values' region u32. An entry is a cache line: three times key u64 and value's address u64 (0 if free),
;; three lengths u32, index of the next entry u32 (0 if there is none). Replies with the value, of up to 64 KB.
(module
  (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
  (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  (global (export "params") i32 (i32.const 1024))
  ;; Behind the parameters, where longer ones would be: a call touches one page.
  (global $entry i32 (i32.const 1088))
  (global $value i32 (i32.const 1152))

  ;; Replies with the value of bucket number $n. 16: the memory is not there, or the reply has no room.
  (func $answer (param $n i32) (result i32) (local $len i32)
    (local.set $len (i32.load offset=48 (i32.add (global.get $entry) (i32.shl (local.get $n) (i32.const 2)))))
    (if (i32.gt_u (local.get $len) (i32.const 65536)) (then (return (i32.const 16))))
    (if (call $read
          (i32.load (i32.const 1048))
          (i64.load offset=8 (i32.add (global.get $entry) (i32.shl (local.get $n) (i32.const 4))))
          (global.get $value) (local.get $len))
      (then (return (i32.const 16))))
    (if (call $reply (global.get $value) (local.get $len)) (then (return (i32.const 16))))
    (i32.const 0))

  ;; Whether bucket number $n holds the key.
  (func $is (param $n i32) (result i32) (local $bucket i32)
    (local.set $bucket (i32.add (global.get $entry) (i32.shl (local.get $n) (i32.const 4))))
    (i32.and
      (i64.eq (i64.load (local.get $bucket)) (i64.load (i32.const 1032)))
      (i64.ne (i64.load offset=8 (local.get $bucket)) (i64.const 0))))

  (func (export "run") (param $len i32) (result i32) (local $index i32)
    (if (i32.ne (local.get $len) (i32.const 28)) (then (return (i32.const 3))))
    (local.set $index (i32.load (i32.const 1040)))
    (loop $next
      (if (call $read
            (i32.load (i32.const 1044))
            (i64.add (i64.load (i32.const 1024)) (i64.shl (i64.extend_i32_u (local.get $index)) (i64.const 6)))
            (global.get $entry) (i32.const 64))
        (then (return (i32.const 16))))
      (if (call $is (i32.const 0)) (then (return (call $answer (i32.const 0)))))
      (if (call $is (i32.const 1)) (then (return (call $answer (i32.const 1)))))
      (if (call $is (i32.const 2)) (then (return (call $answer (i32.const 2)))))
      (br_if $next (local.tee $index (i32.load offset=60 (global.get $entry)))))
    ;; Not found.
    (i32.const 1)))
