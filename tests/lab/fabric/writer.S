# A guest without an operating system that writes: the first sector of the volume that it boots from.
#
# Twice a second, by the BIOS: its count to sector COUNTS + count, then to sector HEAD, from
# which it goes on when it is started again.  What fails is written again until it does not.
.equ HEAD, 1
.equ COUNTS, 2048
.equ BUFFER, 0x7e00
.code16
.text
  ljmp $0x7c0, $begin
begin:
  xor %ax, %ax
  mov %ax, %ss
  mov $0x7c00, %sp
  mov %cs, %ax
  mov %ax, %ds
  movl $HEAD, sector
  mov $0x42, %ah
  call transfer
  sti
next:
  mov $9, %cx
tick:
  hlt
  loop tick
  xor %ax, %ax
  mov %ax, %es
  incl %es:BUFFER
  mov %es:BUFFER, %eax
  add $COUNTS, %eax
  mov %eax, sector
  call write
  movl $HEAD, sector
  call write
  jmp next
write:
  mov $0x4300, %ax
transfer:
  push %ax
  mov $request, %si
  mov $0x80, %dl
  int $0x13
  pop %ax
  jc transfer
  ret
request:
  .byte 16, 0
  .word 1, BUFFER, 0
sector:
  .long 0, 0
.org 510
  .byte 0x55, 0xaa
