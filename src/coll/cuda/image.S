/*
 * The kernels' fat binaries, and cuda_images[], their addresses, ending with NULL. The build defines
 * CUDA_FATBINS when there are any; their folder is on the assembler's include path.
 */
	.macro image file, label
	.section .rodata.cuda, "a"
	.balign 64
\label:
	.incbin "\file"
	.section .data.rel.ro.cuda, "aw"
	.quad \label
	.endm

	.section .data.rel.ro.cuda, "aw"
	.balign 8
	.globl cuda_images
	.hidden cuda_images
	.type cuda_images, %object
cuda_images:
#ifdef CUDA_FATBINS
	image "allreduce_oneshot.fatbin", image_1
	image "allreduce_twostep.fatbin", image_2
	image "allreduce_direct.fatbin", image_3
	image "reducescatter_packet.fatbin", image_4
	image "reducescatter_direct.fatbin", image_5
	image "reduce_staged.fatbin", image_6
	image "move.fatbin", image_7
	image "multimem.fatbin", image_8
#endif
	.quad 0
	.size cuda_images, . - cuda_images
	.section .note.GNU-stack, "", %progbits
