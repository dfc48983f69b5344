;; The vertices within k hops of one vertex: as many round trips as there are vertices, for a client; one, for a node.
;;
;; The graph is in compressed sparse rows: offsets u64 for each vertex and one more, and edges u32.
;; Parameters: key u32, start u32, offsets' address u64, edges' address u64, vertices u32 (up to 262144), hops u32.
;; Reply: the vertices in the order in which they are reached, u32 each, the start first.
;; Status 16: memory could not be read; 17: the reply is too long; 18: a vertex has more than 4096 edges.
;;
;; Build: remora kernel build kernels/khop.wat
(module
  (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
  (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
  ;; 0: offsets of one vertex, 16 bytes; 1024: parameters; 8192: edges of one vertex, 16 KB;
  ;; 32768: a bit for each vertex that was reached, 32 KB; 65536: those vertices in order, 1 MB
  (memory (export "memory") 17)
  (global (export "params") i32 (i32.const 1024))

  ;; Whether the vertex is reached for the first time; marks it.
  (func $mark (param $vertex i32) (result i32) (local $at i32) (local $bit i32) (local $byte i32)
    (local.set $at (i32.add (i32.const 32768) (i32.shr_u (local.get $vertex) (i32.const 3))))
    (local.set $bit (i32.shl (i32.const 1) (i32.and (local.get $vertex) (i32.const 7))))
    (local.set $byte (i32.load8_u (local.get $at)))
    (i32.store8 (local.get $at) (i32.or (local.get $byte) (local.get $bit)))
    (i32.eqz (i32.and (local.get $byte) (local.get $bit))))

  (func (export "run") (param $len i32) (result i32)
    (local $key i32) (local $vertices i32) (local $hops i32) (local $offsets i64) (local $edges i64)
    (local $head i32) (local $tail i32) (local $level_end i32) (local $degree i32) (local $at i32) (local $vertex i32)
    (local $first i64)
    (if (i32.ne (local.get $len) (i32.const 32)) (then (return (i32.const 3))))
    (local.set $key (i32.load (i32.const 1024)))
    (local.set $vertex (i32.load (i32.const 1028)))
    (local.set $offsets (i64.load (i32.const 1032)))
    (local.set $edges (i64.load (i32.const 1040)))
    (local.set $vertices (i32.load (i32.const 1048)))
    (local.set $hops (i32.load (i32.const 1052)))
    (if (i32.or (i32.gt_u (local.get $vertices) (i32.const 262144)) (i32.ge_u (local.get $vertex) (local.get $vertices)))
      (then (return (i32.const 3))))
    (memory.fill (i32.const 32768) (i32.const 0) (i32.const 32768))
    (drop (call $mark (local.get $vertex)))
    (i32.store (i32.const 65536) (local.get $vertex))
    (local.set $head (i32.const 65536))
    (local.set $tail (i32.const 65540))
    (local.set $level_end (local.get $tail))
    (block $done
      (loop $next
        (if (i32.eq (local.get $head) (local.get $level_end)) (then
          (br_if $done (i32.eq (local.get $head) (local.get $tail)))
          (local.set $level_end (local.get $tail))
          (local.set $hops (i32.sub (local.get $hops) (i32.const 1)))))
        (br_if $done (i32.eqz (local.get $hops)))
        (local.set $vertex (i32.load (local.get $head)))
        (local.set $head (i32.add (local.get $head) (i32.const 4)))
        ;; where its edges begin and end
        (if (call $read (local.get $key)
              (i64.add (local.get $offsets) (i64.shl (i64.extend_i32_u (local.get $vertex)) (i64.const 3)))
              (i32.const 0) (i32.const 16))
          (then (return (i32.const 16))))
        (local.set $first (i64.load (i32.const 0)))
        (if (i64.gt_u (i64.sub (i64.load (i32.const 8)) (local.get $first)) (i64.const 4096))
          (then (return (i32.const 18))))
        (local.set $degree (i32.wrap_i64 (i64.sub (i64.load (i32.const 8)) (local.get $first))))
        (if (call $read (local.get $key)
              (i64.add (local.get $edges) (i64.shl (local.get $first) (i64.const 2)))
              (i32.const 8192) (i32.shl (local.get $degree) (i32.const 2)))
          (then (return (i32.const 16))))
        (local.set $at (i32.const 8192))
        (local.set $degree (i32.add (i32.const 8192) (i32.shl (local.get $degree) (i32.const 2))))
        (loop $edge
          (if (i32.lt_u (local.get $at) (local.get $degree)) (then
            (local.set $vertex (i32.load (local.get $at)))
            (local.set $at (i32.add (local.get $at) (i32.const 4)))
            (if (i32.lt_u (local.get $vertex) (local.get $vertices)) (then
              (if (call $mark (local.get $vertex)) (then
                (i32.store (local.get $tail) (local.get $vertex))
                (local.set $tail (i32.add (local.get $tail) (i32.const 4)))))))
            (br $edge))))
        (br $next)))
    (if (call $reply (i32.const 65536) (i32.sub (local.get $tail) (i32.const 65536)))
      (then (return (i32.const 17))))
    (i32.const 0)))
