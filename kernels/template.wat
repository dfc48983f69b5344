;; A kernel: adds the words of an array in the node's memory. Parameters: key u32, count u32, address u64. Reply: u64.
;;
;; Build: remora kernel build template.wat
(module
  (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
  (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  ;; Where the node puts the parameters.
  (global (export "params") i32 (i32.const 1024))
  (func (export "run") (param $len i32) (result i32)
    (local $key i32) (local $count i32) (local $va i64) (local $sum i64)
    (if (i32.ne (local.get $len) (i32.const 16)) (then (return (i32.const 3))))
    (local.set $key (i32.load (i32.const 1024)))
    (local.set $count (i32.load (i32.const 1028)))
    (local.set $va (i64.load (i32.const 1032)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (if (call $read (local.get $key) (local.get $va) (i32.const 0) (i32.const 8)) (then (return (i32.const 16))))
        (local.set $sum (i64.add (local.get $sum) (i64.load (i32.const 0))))
        (local.set $va (i64.add (local.get $va) (i64.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (i64.store (i32.const 0) (local.get $sum))
    (if (call $reply (i32.const 0) (i32.const 8)) (then (return (i32.const 17))))
    (i32.const 0)))
